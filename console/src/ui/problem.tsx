// An error with its remedy.

import { ApiError } from "../api/client";
import { login } from "../login/login";
import { words } from "../words";

export function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  const known = error instanceof ApiError ? error : null;
  const message = known?.status === 0 ? words.problem.unreachable : error instanceof Error ? error.message : String(error);
  return (
    <div class="problem" role="alert">
      <p>{message}</p>
      {known?.remedy && <p class="remedy">{known.remedy}</p>}
      {known?.type === "login_too_old" && (
        <button class="quiet" onClick={() => void login.logOut()}>
          {words.problem.logInAgain}
        </button>
      )}
    </div>
  );
}
