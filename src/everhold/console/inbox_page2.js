export { t as ApprovePairing, n as ConfirmTools, r as default } from "./inbox_page.js";
