function count(number, one, many) {
	return `${number} ${number === 1 ? one : many}`;
}
export { count as t };
