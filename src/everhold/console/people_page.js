import { f as $, t as a, u as d } from "./preact.js";
import { A as call, F as place, M as buildLink, T as useResource, W as words, b as formatNumber, c as Loaded, i as Field, j as callForText, l as Facts, n as saveFile, o as Table, s as Action, v as formatFull } from "./shared.js";
import { t as ApprovePairing } from "./inbox_page.js";
function PeoplePage() {
	const people = useResource((signal) => call("GET /api/people", {}, void 0, signal), [], (entry) => entry.kind === "heard");
	const chosen = place.value.parts[0];
	return /* @__PURE__ */ a(Loaded, {
		resource: people,
		children: ({ people: rows }) => {
			const person = rows.find((it) => it.id === chosen);
			return person ? /* @__PURE__ */ a(Person, {
				person,
				reload: people.reload
			}, person.id) : /* @__PURE__ */ a(Overview, {
				people: rows,
				reload: people.reload
			});
		}
	});
}
function nameOf(person) {
	return person.name || person.identities[0]?.identity || person.id;
}
function Overview({ people, reload }) {
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.people }),
		/* @__PURE__ */ a(Table, {
			label: words.pages.people,
			rows: people,
			getKey: (it) => it.id,
			empty: words.people.none,
			columns: [
				{
					title: words.people.name,
					show: (it) => /* @__PURE__ */ a("a", {
						href: buildLink("people", [it.id]),
						children: nameOf(it)
					})
				},
				{
					title: words.people.identities,
					show: (it) => it.identities.map((identity) => identity.identity).join(", ")
				},
				{
					title: words.people.role,
					show: (it) => describeRole(it)
				}
			]
		}),
		/* @__PURE__ */ a(Link, { reload }),
		/* @__PURE__ */ a(Pairing, { reload }),
		/* @__PURE__ */ a(Erasures, {})
	] });
}
function describeRole(person) {
	if (person.owner) return words.people.owner;
	return person.owner_of.length ? words.people.ownerOf(person.owner_of.join(", ")) : words.people.member;
}
function Link({ reload }) {
	const [identity, write] = d("");
	const [person, name] = d("");
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.people.link }), /* @__PURE__ */ a("form", {
		class: "row",
		onSubmit: (event) => event.preventDefault(),
		children: [
			/* @__PURE__ */ a(Field, {
				label: words.people.identity,
				value: identity,
				onInput: write,
				placeholder: "telegram:1001"
			}),
			/* @__PURE__ */ a(Field, {
				label: words.people.toPerson,
				value: person,
				onInput: name
			}),
			/* @__PURE__ */ a(Action, {
				label: words.people.link,
				disabled: !identity.trim() || !person.trim(),
				act: async () => void await call("POST /api/people/link", {}, {
					identity: identity.trim(),
					person: person.trim()
				}),
				onDone: reload
			})
		]
	})] });
}
function Pairing({ reload }) {
	const pairing = useResource((signal) => call("GET /api/pairing", {}, void 0, signal), []);
	const done = () => {
		pairing.reload();
		reload();
	};
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.people.access }), /* @__PURE__ */ a(Loaded, {
		resource: pairing,
		children: ({ waiting, granted }) => /* @__PURE__ */ a($, { children: [
			/* @__PURE__ */ a(Table, {
				label: words.people.asking,
				rows: waiting,
				getKey: (it) => it.identity,
				empty: words.people.nobodyAsks,
				columns: [
					{
						title: words.people.asking,
						show: (it) => it.name || it.identity
					},
					{
						title: words.people.identity,
						show: (it) => it.identity
					},
					{
						title: words.people.until,
						show: (it) => it.until ? formatFull(it.until) : ""
					}
				]
			}),
			waiting.length > 0 && /* @__PURE__ */ a(ApprovePairing, { reload: done }),
			granted.length > 0 && /* @__PURE__ */ a(Table, {
				label: words.people.granted,
				rows: granted,
				getKey: (it) => it.identity,
				empty: "",
				columns: [{
					title: words.people.granted,
					show: (it) => it.identity
				}, {
					title: words.actions,
					show: (it) => /* @__PURE__ */ a(Action, {
						label: words.people.revoke,
						confirm: words.people.confirmRevoke,
						act: async () => void await call("POST /api/pairing/revoke", {}, { identity: it.identity }),
						onDone: done
					})
				}]
			})
		] })
	})] });
}
function Person({ person, reload }) {
	const [name, write] = d(person.name);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("p", {
			class: "breadcrumb",
			children: /* @__PURE__ */ a("a", {
				href: buildLink("people"),
				children: words.pages.people
			})
		}),
		/* @__PURE__ */ a("h2", { children: nameOf(person) }),
		/* @__PURE__ */ a(Facts, { rows: [[words.people.role, describeRole(person)]] }),
		/* @__PURE__ */ a("form", {
			class: "row",
			onSubmit: (event) => event.preventDefault(),
			children: [/* @__PURE__ */ a(Field, {
				label: words.people.name,
				value: name,
				onInput: write
			}), /* @__PURE__ */ a(Action, {
				label: words.manage.rename,
				disabled: !name.trim() || name === person.name,
				act: async () => void await call("POST /api/people/name", {}, {
					person: person.identities[0]?.identity ?? person.id,
					name: name.trim()
				}),
				onDone: reload
			})]
		}),
		/* @__PURE__ */ a(Table, {
			label: words.people.identities,
			rows: person.identities,
			getKey: (it) => it.identity,
			empty: words.people.none,
			columns: [
				{
					title: words.people.identity,
					show: (it) => it.identity
				},
				{
					title: words.people.proof,
					show: (it) => words.people.proofs[it.proof] ?? it.proof
				},
				{
					title: words.people.since,
					show: (it) => it.since ? formatFull(it.since) : words.people.always
				},
				{
					title: words.actions,
					show: (it) => it.proof !== "config" && it.proof !== "token" && /* @__PURE__ */ a(Unlink, {
						identity: it.identity,
						reload
					})
				}
			]
		}),
		/* @__PURE__ */ a("p", { children: /* @__PURE__ */ a("a", {
			href: buildLink("sessions", [], {
				person: nameOf(person),
				state: "all"
			}),
			children: words.people.sessions
		}) }),
		/* @__PURE__ */ a(Action, {
			label: words.people.export,
			act: async () => saveFile(`${nameOf(person)}.ndjson`, await callForText("GET /api/memory/export", { person: nameOf(person) }))
		}),
		/* @__PURE__ */ a(Forget, { person })
	] });
}
function Unlink({ identity, reload }) {
	return /* @__PURE__ */ a(Action, {
		label: words.people.unlink,
		confirm: words.people.confirmUnlink,
		act: async () => void await call("POST /api/people/unlink", {}, { identity }),
		onDone: reload
	});
}
function Forget({ person }) {
	const [plan, show] = d(null);
	const [done, finish] = d(null);
	const name = nameOf(person);
	return /* @__PURE__ */ a("fieldset", {
		class: "danger-zone",
		children: [
			/* @__PURE__ */ a("legend", { children: words.people.forget }),
			/* @__PURE__ */ a("p", { children: words.people.forgetAbout }),
			!plan && /* @__PURE__ */ a(Action, {
				label: words.people.planForget,
				act: async () => show(await call("POST /api/memory/forget", {}, {
					person: name,
					dry_run: true
				}))
			}),
			plan && /* @__PURE__ */ a(ForgetPlan, { plan: done ?? plan }),
			plan && !done && /* @__PURE__ */ a(Action, {
				label: words.people.forget,
				danger: true,
				act: async () => finish(await call("POST /api/memory/forget", {}, { person: name }))
			}),
			done && /* @__PURE__ */ a("p", {
				role: "status",
				children: words.people.forgetBegan
			})
		]
	});
}
function ForgetPlan({ plan }) {
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a(Facts, { rows: [
			[words.people.names, [...plan.names, ...plan.former].join(", ")],
			[words.pages.sessions, formatNumber(plan.sessions.length)],
			[words.manage.entries, formatNumber(plan.entries)],
			[words.people.recalls, formatNumber(plan.recalls)],
			[words.pages.schedules, formatNumber(plan.schedules)],
			[words.manage.records, formatNumber(plan.records)]
		] }),
		/* @__PURE__ */ a(Places, { places: plan.places }),
		plan.remains.length > 0 && /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.people.remains }), /* @__PURE__ */ a("ul", {
			class: "traces",
			children: plan.remains.map((it) => /* @__PURE__ */ a("li", { children: it }))
		})] })
	] });
}
function Places({ places }) {
	return /* @__PURE__ */ a(Table, {
		label: words.people.places,
		rows: places,
		getKey: (it) => `${it.place} ${it.agent}`,
		empty: words.people.noPlaces,
		columns: [
			{
				title: words.people.places,
				show: (it) => it.place
			},
			{
				title: words.agent,
				show: (it) => it.agent
			},
			{
				title: words.delivery.state,
				show: (it) => it.state
			},
			{
				title: words.people.parts,
				show: (it) => it.parts.map((part) => `${part.what} (${part.count})`).join(", ")
			},
			{
				title: words.delivery.reason,
				show: (it) => /* @__PURE__ */ a("span", {
					class: it.problem ? "bad" : void 0,
					children: it.problem
				})
			}
		]
	});
}
function Erasures() {
	const erasures = useResource((signal) => call("GET /api/memory/erasures", {}, void 0, signal), [], (entry) => entry.kind === "erased");
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.people.forgettings }), /* @__PURE__ */ a(Loaded, {
		resource: erasures,
		children: ({ erasures: rows }) => /* @__PURE__ */ a($, { children: [!rows.length && /* @__PURE__ */ a("p", {
			class: "hint",
			children: words.people.noForgettings
		}), rows.map((it) => /* @__PURE__ */ a(Erasure, {
			erasure: it,
			reload: erasures.reload
		}, it.id))] })
	})] });
}
function Erasure({ erasure, reload }) {
	const problem = erasure.places.some((it) => it.problem && !it.accepted_at);
	return /* @__PURE__ */ a("details", {
		open: problem,
		children: [
			/* @__PURE__ */ a("summary", { children: [
				erasure.identities.join(", "),
				" · ",
				erasure.state,
				" · ",
				formatFull(erasure.at)
			] }),
			/* @__PURE__ */ a(Places, { places: erasure.places }),
			problem && /* @__PURE__ */ a(Action, {
				label: words.people.accept,
				confirm: words.people.confirmAccept,
				act: async () => void await call("POST /api/memory/erasures/{id}/accept", { id: erasure.id }),
				onDone: reload
			})
		]
	});
}
export { PeoplePage as default };
