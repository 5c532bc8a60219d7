// What a test found: an answer, or the cause of a failure and its remedy.

import type { ModelTestResponse } from "../api/generated";
import { formatSeconds } from "../ui/time";
import { words } from "../words";

export function ModelTestResult({ result }: { result: ModelTestResponse }) {
  if (!result.works) return <Failure message={result.message} remedy={result.remedy} />;
  return (
    <p class="good" role="status">
      {words.setup.modelWorks(result.reply.slice(0, 200), formatSeconds(result.seconds))} {result.written && words.setup.modelInUse}
    </p>
  );
}

export function Failure({ message, remedy }: { message: string; remedy: string }) {
  return (
    <div class="problem" role="alert">
      <p>{message}</p>
      {remedy && <p class="remedy">{remedy}</p>}
    </div>
  );
}
