#!/usr/bin/env python3
"""Compares rules for steps that lack room for a block of a prompt, in virtual time.

One node computes prompts and generates. A step takes 8 ms, 1 ms for each generated row and 0.3 ms
for each prompt row, and 5 % of noise; a block has 32 rows. Requests arrive at random and are the
same for every rule. Results: docs/measurements/2026-11-28-prompt-deadlines.md.

    tests/bench/interleaving/prompt_wait.py --rate 1 --goal 20 --due 3000
"""

import argparse
import random

STEP_MS, GENERATED_MS, PROMPT_MS = 8.0, 1.0, 0.3
BLOCK, BATCH = 32, 512
DURATION_MS = 200_000

# Rule: the share of its time that a prompt may wait, and the rows of a step while all may wait and
# after that, of those that fit, a block and the longest chunk.
RULES = {
    "a block in each step": (0.0, lambda fit, block, longest: 0, lambda fit, block, longest: block),
    "none, then a block": (1.0, lambda fit, block, longest: 0, lambda fit, block, longest: block),
    "what fits, then a block": (1.0, lambda f, b, l: f, lambda f, b, l: b),
    "what fits for half the time": (0.5, lambda f, b, l: f, lambda f, b, l: b),
    "what fits for a quarter": (0.25, lambda f, b, l: f, lambda f, b, l: b),
    "half a block or none, half": (0.5, lambda f, b, l: f if 2 * f >= b else 0, lambda f, b, l: b),
    "what fits, then a batch": (1.0, lambda f, b, l: f, lambda f, b, l: l),
    "what fits for half, a batch": (0.5, lambda f, b, l: f, lambda f, b, l: l),
}


def arrivals(rate, seed):
    draw = random.Random(seed)
    at, requests = 0.0, []
    while True:
        at += draw.expovariate(rate) * 1000
        if at > DURATION_MS:
            return requests
        prompt = max(16, int(draw.gauss(512, 512 / 3)))
        requests.append([at, prompt, 1 + int(draw.expovariate(1 / 200))])


def rows_of_step(rule, prompts, generating, now, options):
    """Rows of prompts in the next step."""
    base = STEP_MS + GENERATED_MS * generating
    longest = min(sum(prompt[1] for prompt in prompts), BATCH)
    if not generating:
        return longest
    fit = min(max(0, int((options.goal - base) / PROMPT_MS)), longest)
    block = min(BLOCK, longest)
    if fit >= block:
        return fit
    share, waiting, due = RULES[rule]
    pace = PROMPT_MS * 1.2 if "batch" in rule else (base + BLOCK * PROMPT_MS) / BLOCK
    ahead = 0
    for arrived, left, _ in prompts:
        ahead += left
        if now + ahead * pace > arrived + share * options.due:
            return due(fit, block, longest)
    return waiting(fit, block, longest)


def simulate(rule, options, seed):
    noise = random.Random(seed + 77)
    requests = arrivals(options.rate, seed)
    prompts, generating, gaps, first_tokens = [], [], [], []
    now, taken = 0.0, 0
    while taken < len(requests) or prompts or generating:
        while taken < len(requests) and requests[taken][0] <= now:
            prompts.append(list(requests[taken]))
            taken += 1
        if not prompts and not generating:
            now = requests[taken][0]
            continue
        rows = rows_of_step(rule, prompts, len(generating), now, options) if prompts else 0
        step = STEP_MS + GENERATED_MS * len(generating) + PROMPT_MS * rows
        step *= noise.uniform(0.95, 1.05)
        now += step
        gaps += [step] * len(generating)
        generating = [left - 1 for left in generating if left > 1]
        while rows > 0:
            chunk = min(rows, prompts[0][1])
            prompts[0][1] -= chunk
            rows -= chunk
            if prompts[0][1] == 0:
                arrived, _, answer = prompts.pop(0)
                first_tokens.append(now - arrived)
                if answer > 1:
                    generating.append(answer - 1)
    return gaps, first_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--goal", type=float, default=20.0, help="of a step, ms")
    parser.add_argument("--due", type=float, default=3000.0, help="of a first token, ms")
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    print(f"seeds 0 to {options.seeds - 1}; rate {options.rate}/s, step goal {options.goal} ms, "
          f"first tokens due after {options.due} ms")
    for rule in RULES:
        gaps, first = [], []
        for seed in range(options.seeds):
            more_gaps, more_first = simulate(rule, options, seed)
            gaps += more_gaps
            first += more_first
        gaps.sort()
        first.sort()
        missed = sum(gap > options.goal * 1.06 for gap in gaps) / len(gaps)
        in_time = sum(time <= options.due for time in first) / len(first)
        print(f"{rule:28} gap p99 {gaps[len(gaps) * 99 // 100]:6.1f} ms, missed {missed:6.2%}; "
              f"first token p50 {first[len(first) // 2]:6.0f}, p90 {first[len(first) * 9 // 10]:6.0f}"
              f" ms, in time {in_time:6.1%}")


if __name__ == "__main__":
    main()
