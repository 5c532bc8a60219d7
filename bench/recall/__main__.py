"""`python -m bench.recall used|quality|languages|speed|fresh|compare`: how much of the evidence reaches the request of
a turn (also as `python -m bench recall`), how much a search finds, the same in eleven languages, its time, how soon a
new note is found, and a comparison with other memories.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.recall import comparison, fresh, parallel, quality, speed, used
from bench.recall.data import ABSENT, DATA, Conversation, beam, locomo
from everhold.memories.builtin import onnx_embeddings
from everhold.memories.builtin.embeddings import EmbeddingsMode


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recall")
    parser.add_argument(
        "what", choices=("used", "quality", "languages", "speed", "fresh", "compare"), nargs="?", default="quality"
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--use", choices=("table", "auto"), action="append", help="embeddings; all by default")
    parser.add_argument("--models", type=Path, help="where the stronger model's folder is, if in no package")
    parser.add_argument(
        "--items", type=int, action="append", help="sizes for speed and fresh; 10,000 and 100,000 by default"
    )
    parser.add_argument("--half", choices=("all", "tuning", "validation"), default="all", help="of the questions")
    parser.add_argument("--set", choices=("locomo", "beam"), action="append", help="for `used`; both by default")
    parser.add_argument("--tokens", type=int, help="recall.max_tokens; its default unless given")
    parser.add_argument("--http", action="store_true", help="ask a running gateway instead of its recall alone")
    parser.add_argument("--asked-before", type=float, default=0.0, help="share of the questions that were asked before")
    parser.add_argument("--missed", action="store_true", help="for `languages`: list what is not in the first five")
    options = parser.parse_args(arguments)
    uses: list[EmbeddingsMode] = options.use or ["table", "auto"]
    if options.what == "speed":
        asyncio.run(_speed(options.items or [10_000, 100_000], [use for use in uses if use != "auto"]))
    elif options.what == "fresh":
        asyncio.run(_fresh(options.items or [10_000, 100_000]))
    elif options.what == "used":
        asyncio.run(_used(options, uses))
    elif options.what == "languages":
        asyncio.run(_languages(options, uses))
    elif options.what == "compare":
        asyncio.run(_compare(options.data))
    else:
        asyncio.run(_quality(options.data, uses, options.models))


async def _quality(data: Path, uses: list[EmbeddingsMode], models: Path | None) -> None:
    sets = {"LoCoMo": locomo(data), "BEAM-100K": beam(data)}
    if not any(sets.values()):
        print(ABSENT)
        return
    print("| set | embeddings | questions | R@5 | R@10 | R@20 | in 1,700 tokens |\n|---|---|---|---|---|---|---|")
    for use in uses:
        if use == "auto" and not onnx_embeddings.is_available(models):
            print(f"| | {use}: not installed | | | | | |")
            continue
        for name, talks in sets.items():
            if talks:
                score = await quality.measure(talks, use=use, models=models)
                print(
                    f"| {name} | {use} | {score.questions} | {score.at_5:.3f} | {score.at_10:.3f} | {score.at_20:.3f} "
                    f"| {score.in_budget:.3f} |",
                    flush=True,
                )
                print(f"  by kind, R@10: {', '.join(f'{kind} {value:.3f}' for kind, value in score.kinds.items())}")


async def _used(options: argparse.Namespace, uses: list[EmbeddingsMode]) -> None:
    sets = {"locomo": locomo, "beam": beam}
    if not any(read(options.data) for read in sets.values()):
        print(ABSENT)
        return
    print(
        "| set | embeddings | questions | evidence in the request | R@10 | R@5 | R@20 | tokens of the block | most ",
        end="",
    )
    print("| stored bytes | CPU ms |\n" + "|---" * 11 + "|")
    for use in uses:
        if use == "auto" and not onnx_embeddings.is_available(options.models):
            print(f"| | {use}: not installed |" + " |" * 9)
            continue
        for name in options.set or sets:
            answered: list[used.Answered] = []
            for talk in used.select_half(sets[name](options.data), options.half):
                answered += await _ask(talk, options, use)
            if answered:
                _print_used(name, use, answered)


async def _ask(talk: Conversation, options: argparse.Namespace, use: EmbeddingsMode) -> list[used.Answered]:
    if options.http:
        with tempfile.TemporaryDirectory() as home:
            return await used.ask_over_http(talk, directory=Path(home), use=use, max_tokens=options.tokens)
    return await used.ask_in_process(
        talk, use=use, models=options.models, max_tokens=options.tokens, asked_before=options.asked_before
    )


def _print_used(name: str, use: str, answered: list[used.Answered]) -> None:
    s = used.summarize(answered)
    print(
        f"| {name} | {use} | {len(answered)} | {s['in_request']} | {s['at_10']} | {s['at_5']:.3f} | {s['at_20']:.3f} "
        f"| {s['tokens']:.0f} | {s['max_tokens']} | {s['stored_bytes']:.0f} | {s['cpu_ms']:.1f} |",
        flush=True,
    )
    kinds = sorted({one.kind for one in answered})
    shares = {kind: fmean(one.in_request for one in answered if one.kind == kind) for kind in kinds}
    print(f"  by kind, in the request: {', '.join(f'{kind} {share:.3f}' for kind, share in shares.items())}")


async def _languages(options: argparse.Namespace, uses: list[EmbeddingsMode]) -> None:
    print("| language | embeddings | questions | R@1 | R@5 | R@10 |\n|---|---|---|---|---|---|")
    for use in uses:
        if use == "auto" and not onnx_embeddings.is_available(options.models):
            print(f"| | {use}: not installed | | | | |")
            continue
        for language in parallel.list_languages():
            s = await parallel.measure(language, use=use, models=options.models, half=options.half)
            print(f"| {language} | {use} | {s.questions} | {s.at_1} | {s.at_5} | {s.at_10} |", flush=True)
            if options.missed:
                print("\n".join(f"  {question}" for question in s.missed))


async def _compare(data: Path) -> None:
    sets = [talks for talks in (locomo(data), beam(data)) if talks]
    print("| | LoCoMo R@5 | R@10 | in 1,700 tokens | BEAM R@5 | R@10 | in 1,700 tokens " if sets else "| ", end="")
    print(f"| of {comparison.ITEMS:,}: add, CPU ms | find p50 ms | p95 ms | CPU ms |")
    print("|---" * (11 if sets else 5) + "|")
    for name, make in comparison.MEMORIES.items():
        scores = [await comparison.quality(talks, make) for talks in sets]
        cells = [f"{value:.3f}" for one in scores for value in (one.at_5, one.at_10, one.in_budget)]
        pace = await comparison.pace(make)
        cells += [f"{pace.add_ms:.2f}", f"{pace.p50_ms:.1f}", f"{pace.p95_ms:.1f}", f"{pace.cpu_ms:.1f}"]
        print("|", " | ".join([name, *cells]), "|", flush=True)


async def _speed(sizes: list[int], uses: list[EmbeddingsMode]) -> None:
    print(
        "| items | embeddings | take in, CPU ms | first ms | p50 ms | p95 ms | CPU p50 | CPU p95 | new item ms "
        "| a turn, CPU ms | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for size in sizes:
        for use in uses:
            t = await speed.measure(size, use=use)
            print(
                f"| {t.items:,} | {use} | {t.take_in_ms:.3f} | {t.cold_ms:.0f} | {t.p50_ms:.1f} | {t.p95_ms:.1f} "
                f"| {t.cpu_p50_ms:.1f} | {t.cpu_p95_ms:.1f} | {t.fresh_ms:.1f} | {t.turn_ms:.2f} | {t.file_mb:.0f} |",
                flush=True,
            )


async def _fresh(sizes: list[int]) -> None:
    print("| items | a note is found after, p50 ms | p95 ms | CPU ms | the same question again, ms |")
    print("|---|---|---|---|---|")
    for size in sizes:
        t = await fresh.measure(size)
        print(f"| {t.items:,} | {t.p50_ms:.1f} | {t.p95_ms:.1f} | {t.cpu_ms:.1f} | {t.again_ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
