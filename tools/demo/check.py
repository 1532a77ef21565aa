"""Checks a trained model: does it follow instructions, what do its stories look like, and which logits are the right ones.

Everything here runs transformers in float32 (float64 for the golden values) on the dequantized weights of the shipped
GGUF, so the numbers speak about that file.
"""

import json
import random
import re

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .conversation import request_and_story, roughen, story_request
from .export import CHAT_TEMPLATE, read_gguf
from .generator import tell
from .questions import world_question

GOLDEN_PROMPTS = ["Tell me a story about a fox.", "Tell me a story about a brave owl with two friends.", "What does a frog eat?",
                  "Write a short story about a green turtle named Zara who lives by the river."]
SAMPLE_PROMPTS = ["Tell me a story about a fox.", "Tell me a story about a brave owl with two friends.", "a story about a blue rabbit called Mortimer",
                  "Write a short story about a shy bear in the mountains.", "Can you tell me a story about a mouse and seven nuts?",
                  "Please tell me a bedtime story about a whale.", "Tell me a story about a clever girl named Ada and her three friends.",
                  "story about a robot who is afraid of the dark", "Tell me a story about a red dragon and a silver key.",
                  "I would like to hear a story about honesty. Give it a title."]


def load(args, cfg):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(args.out / "hf" / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                        padding_side="left", clean_up_tokenization_spaces=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig.from_pretrained(args.out / "hf")
    model = LlamaForCausalLM(config).float().eval()
    state = read_gguf(args.out / "demo.gguf", cfg)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return tokenizer, model


def prompt_of(tokenizer, messages):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@torch.no_grad()
def answers(tokenizer, model, prompts, device, temperature=0.0, seed=0, limit=700, batch=256):
    """(text, stopped by itself) for each prompt."""
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    results = {}
    for i in range(0, len(prompts), batch):
        part = order[i:i + batch]
        enc = tokenizer([prompts[j] for j in part], return_tensors="pt", padding=True, add_special_tokens=False).to(device)
        sampling = dict(do_sample=True, temperature=temperature, top_p=1.0, top_k=0) if temperature else dict(do_sample=False, temperature=None, top_p=None, top_k=None)
        ids = model.generate(input_ids=enc.input_ids, attention_mask=enc.attention_mask, max_new_tokens=min(limit, 1023 - enc.input_ids.shape[1]),
                             eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **sampling)[:, enc.input_ids.shape[1]:]
        for j, row in zip(part, ids.tolist()):
            stopped = tokenizer.eos_token_id in row
            row = row[:row.index(tokenizer.eos_token_id)] if stopped else row
            results[j] = (tokenizer.decode(row), stopped)
    return [results[i] for i in range(len(prompts))]


def judge(spec, text, stopped):
    """Which demands of a request its story meets, by name of the demand."""
    low = text.lower()
    word = lambda w: re.search(rf"\b{re.escape(w.lower())}\b", low) is not None
    verdict = {"stops": stopped, "animal": word(spec.kind)}
    if spec.name:
        verdict["name"] = word(spec.name)
    if spec.trait:
        verdict["trait"] = word(spec.trait)
    if spec.colour:
        verdict["colour"] = word(spec.colour)
    if spec.place:
        verdict["place"] = word(spec.place)
    if spec.n_friends:
        # The sentence that introduces the friends names exactly so many, and each of them appears again.
        sentence = next((s for s in re.split(r"(?<=[.!?])\s", text) if re.search(r"\bfriends?\b", s) and re.search(r"\b(named|called)\b", s)), "")
        names = re.findall(r"(?:named|called) (\w+)", sentence)
        verdict["friends"] = len(names) == spec.n_friends and len(set(names)) == len(names)
        verdict["friends act"] = bool(names) and all(len(re.findall(rf"\b{n}\b", text)) > 1 for n in names)
        if spec.friend_kinds:
            verdict["friend kinds"] = all(word(k) for k in spec.friend_kinds)
        if spec.friend_names:
            verdict["friend names"] = all(word(n) for n in spec.friend_names)
    return verdict


def instruction_rates(args, tokenizer, model, device):
    rng = random.Random("instructions")
    requests = []
    while len(requests) < args.prompts:
        text, spec = story_request(rng, strict=True)
        try:
            tell(rng, spec)
        except ValueError:
            continue
        requests.append((roughen(rng, text), spec))
    report = {}
    for label, temperature in (("greedy", 0.0), ("temperature 0.7", 0.7)):
        counts, whole, failures = {}, 0, []
        for (request, spec), (text, stopped) in zip(requests, answers(tokenizer, model, [prompt_of(tokenizer, r) for r, _ in requests], device, temperature)):
            verdict = judge(spec, text, stopped)
            whole += all(verdict.values())
            if not all(verdict.values()):
                failures.append((request, [k for k, v in verdict.items() if not v], text))
            for k, v in verdict.items():
                good, n = counts.get(k, (0, 0))
                counts[k] = (good + v, n + 1)
        report[label] = {"all demands met": f"{whole}/{len(requests)}", **{k: f"{g}/{n}" for k, (g, n) in counts.items()}}
        print(label, json.dumps(report[label]), flush=True)
        for failure in failures[:12]:
            print("   ", failure, flush=True)

    # Questions with one right answer, greedy: about the world, and about a story in the prompt.
    prompts, right = [], []
    while len(prompts) < args.prompts:
        q, a = world_question(rng)
        if not any(x.startswith(("Name", "Tell me a word", "What rhymes", "Do you know a joke")) for x in q):
            prompts.append(prompt_of(tokenizer, rng.choice(q)))
            right.append(a)
    got = answers(tokenizer, model, prompts, device, limit=60)
    report["world questions"] = f"{sum(t in a for (t, _), a in zip(got, right))}/{len(right)}"
    for (t, _), a, p in list(zip(got, right, prompts)):
        if t not in a:
            print("   world:", p.split("\n")[1], "=>", t, "| not", a[0])
    prompts, right = [], []
    while len(prompts) < args.prompts:
        _, story = request_and_story(rng, title=False)
        q, a = rng.choice(story.questions)
        prompts.append(prompt_of(tokenizer, f"{story.text}\n\n{rng.choice(q)}"))
        right.append(a)
    got = answers(tokenizer, model, prompts, device, limit=80)
    unknown = lambda a: a[0] == "The story does not say that."
    ok = lambda t, a: t in a or unknown(a) and t in ("I do not know. The story does not tell us.", "That is not in the story.")
    report["questions about a story"] = f"{sum(ok(t, a) for (t, _), a in zip(got, right))}/{len(right)}"
    for (t, _), a, p in list(zip(got, right, prompts)):
        if not ok(t, a):
            print("   story:", p.split("\n")[-3][-160:], "=>", t, "| not", a[0])
    print(json.dumps({k: v for k, v in report.items() if isinstance(v, str)}))
    return report


def samples(args, tokenizer, model, device):
    lines = []
    for seed, prompt in enumerate(SAMPLE_PROMPTS, 1):
        text, _ = answers(tokenizer, model, [prompt_of(tokenizer, prompt)], device, temperature=0.7, seed=seed)[0]
        lines.append(f"**{prompt}** (seed {seed})\n\n" + "\n".join("> " + line if line else ">" for line in text.split("\n")) + "\n")
    (args.out / "samples.md").write_text("\n".join(lines))
    print("\n".join(lines), flush=True)


@torch.no_grad()
def golden(args, cfg, device, n_tokens=64):
    """Logits and greedy tokens of the shipped file, in float64 on the CPU."""
    tokenizer, model = load(args, cfg)
    model = model.double()
    cases = []
    for prompt in GOLDEN_PROMPTS:
        text = prompt_of(tokenizer, prompt)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        logits = model(torch.tensor([ids])).logits[0]
        top = logits.topk(5)
        positions = [{"ids": i.tolist(), "logits": [round(x, 5) for x in v.tolist()]} for v, i in zip(top.values, top.indices)]
        sequence, tokens, gaps = list(ids), [], []
        for _ in range(n_tokens):
            best = model(torch.tensor([sequence])).logits[0, -1].topk(2)
            tokens.append(best.indices[0].item())
            gaps.append(round((best.values[0] - best.values[1]).item(), 4))
            sequence.append(tokens[-1])
            if tokens[-1] == tokenizer.eos_token_id:
                break
        cases.append({"message": prompt, "prompt": text, "prompt_ids": ids, "top5": positions, "greedy_ids": tokens, "greedy_gaps": gaps,
                      "greedy_text": tokenizer.decode(tokens)})
    import transformers
    made = f"tools/train_demo.py --only golden, transformers {transformers.__version__}, torch {torch.__version__}, float64, dequantized weights of demo.gguf"
    head = json.dumps({"made_by": made}, ensure_ascii=False)[:-1]
    body = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    args.golden.parent.mkdir(parents=True, exist_ok=True)
    args.golden.write_text(f'{head}, "cases": [\n{body}\n]}}\n')
    print(f"{args.golden}: {args.golden.stat().st_size} bytes")


def check(args, cfg, device):
    tokenizer, model = load(args, cfg)
    model.to(device)
    samples(args, tokenizer, model, device)
    report = instruction_rates(args, tokenizer, model, device)
    (args.out / "rates.json").write_text(json.dumps(report, indent=2) + "\n")
