export { n as Problems, t as default } from "./health_page2.js";
