"""Adapters of the fault set: the first ones taught what its users ask, and damaged copies.

Training goes on from a given adapter with `training.sft`'s loss over demonstrations of the
requests of `examples.fault_world`; minutes on two cores. Damage is done to the file: noise in the
size of each weight's own spread, scaling, and rows in another order.
"""

import json
import random
import shutil
import time
from pathlib import Path

import typer

from curation.examples import Duty, Example
from examples.fault_world import Request, handover, plain, spoken
from promotion.suites.household import TOOLS
from serving.own_view import Conversation, Entry, own_view, route_view, summary_view
from serving.records import Message
from serving.slots import Profile

WEIGHTS = "adapter_model.safetensors"
DAMAGES = {
    "L0": ("noise-6", "scale-5", "shuffle"),
    "L1": ("noise-5", "scale-0.3", "half"),
    "L2": ("noise-9", "scale--2", "shuffle"),
    "L3": ("noise-4", "scale-0.3", "shuffle"),
}
"""Kinds of damage and their strength, by slot; `half` silences every other layer."""
_ROWS = {"L0": (32, 0, 32), "L1": (20, 44, 44), "L2": (56, 0, 0), "L3": (40, 0, 44)}
"""Plain, spoken and handed-over requests in each slot's lesson."""
_ROUTES, _SUMMARIES, _EPOCHS, _BATCH, _RATE = 26, 10, 2, 8, 6e-4


def teach(profile: Profile, slot: str, base: Path, adapter: Path, out: Path, seed: int = 0) -> None:
    """Train a slot's adapter further and save it in PEFT form."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from training.artifact import base_digest
    from training.batches import collate
    from training.render import render_rows
    from training.sft import weighted_loss
    from training.train import load_tokenizer

    tokenizer = load_tokenizer(base, None)
    rows = list(render_rows(tokenizer, lessons(profile, slot, seed), 512).rows)
    order = random.Random(seed)
    rows = [row for _ in range(_EPOCHS) for row in order.sample(rows, len(rows))]
    plain_base = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain_base, adapter, is_trainable=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_RATE, weight_decay=0.0)
    batches = [rows[i : i + _BATCH] for i in range(0, len(rows), _BATCH)]
    started = time.monotonic()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - step / len(batches))
        loss, _ = weighted_loss(model, collate(batch, tokenizer.pad_token_id), None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spent = time.monotonic() - started
        typer.echo(
            f"{slot}: {step + 1}/{len(batches)} loss {float(loss):.3f} {spent:.0f} s", err=True
        )
    model.peft_config["default"].base_model_name_or_path = base_digest(base)
    model.save_pretrained(out, safe_serialization=True, save_embedding_layers=False)


def lessons(profile: Profile, slot: str, seed: int) -> list[Example]:
    """Return demonstrations of a slot's duties as the fault set needs them."""
    rng = random.Random(f"lessons-{slot}-{seed}")
    seen: list[tuple[Duty, tuple[Message, ...], str, Message]] = []
    tools = json.dumps(list(TOOLS)) if profile.slot(slot).offers_tools else "[]"
    alone, aloud, handed = _ROWS[slot]
    requests = [plain(rng, slot) for _ in range(alone)]
    for request in requests:
        view = own_view(profile, Conversation("c"), slot, request.task.text)
        seen.append(("answer", view, tools, request.task.answer))
    for _ in range(aloud):
        request = spoken(rng)
        view = own_view(profile, Conversation("c"), slot, request.task.text)
        seen.append(("answer", (*view, *called(request)), tools, request.right_answer))
    for _ in range(handed):
        earlier, later = _pair(rng, slot)
        conversation = Conversation("c", timeline=[entry(earlier)])
        view = own_view(profile, conversation, slot, later.task.text)
        seen.append(("answer", view, tools, later.task.answer))
    for request in requests[:_SUMMARIES]:
        view = own_view(profile, Conversation("c"), slot, request.task.text)
        asked = summary_view(profile, view, called(request))
        seen.append(("answer", asked, "[]", Message(role="assistant", content=summary(request))))
    if slot == profile.router:
        for label in profile.labels:
            for _ in range(_ROUTES):
                request = plain(rng, label) if rng.random() < 0.6 else _pair(rng, label)[1]
                label_said = Message(role="assistant", content=label)
                seen.append(("route", route_view(profile, request.task.text), "[]", label_said))
    return [
        Example.make(
            "train", slot=slot, duty=duty, messages=messages, tools=offered, completion=completion,
            source="verified", weight=1.0, user=None, conversation_id="lesson",
            turn_id=f"lesson-{n}", hop_id=f"lesson-{n}",
        )
        for n, (duty, messages, offered, completion) in enumerate(seen)
    ]  # fmt: skip


def _pair(rng: random.Random, slot: str) -> tuple[Request, Request]:
    """Return a hand-over to a slot; a plain request where there is none to it."""
    for _ in range(200):
        earlier, later = handover(rng)
        if later.task.slot == slot:
            return earlier, later
    return plain(rng, slot), plain(rng, slot)


def called(request: Request) -> list[Message]:
    """Return the right answer, with what its tool returned."""
    messages = [request.task.answer]
    for call in request.task.answer.tool_calls:
        content = json.dumps(request.result or {"ok": True})
        messages.append(Message(role="tool", content=content, tool_call_id=call.id))
    return messages


def summary(request: Request) -> str:
    """Return what a slot should hand over of a turn."""
    calls = request.task.answer.tool_calls
    said = f"{calls[0].name} {calls[0].arguments}" if calls else request.task.answer.content
    said = request.task.keywords[0] if request.task.slot in ("L2", "L3") else said
    return f"Asked: {request.task.text} Answer: {said}"


def entry(request: Request) -> Entry:
    """Return a finished turn as another slot's view has it."""
    user = Message(role="user", content=request.task.text)
    return Entry(request.task.slot, (user, *called(request)), summary(request))


def damage(adapter: Path, out: Path, kind: str, seed: int = 0) -> None:
    """Save a copy of an adapter with its B weights damaged."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(seed)
    weights = load_file(adapter / WEIGHTS)
    word, _, strength = kind.partition("-")
    for number, name in enumerate(sorted(weights)):
        if "lora_B" not in name:
            continue
        b = weights[name]
        if word == "noise":
            noise = torch.randn(b.shape, generator=generator) * b.std()
            weights[name] = b + float(strength) * noise
        elif word == "scale":
            weights[name] = b * float(strength)
        elif word == "shuffle":
            weights[name] = b[torch.randperm(len(b), generator=generator)].contiguous()
        elif number // 14 % 2:
            weights[name] = torch.zeros_like(b)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(adapter / "adapter_config.json", out / "adapter_config.json")
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})


def damaged(adapters: dict[str, Path], out: Path) -> dict[str, Path]:
    """Damage each adapter in every way; return folder by `slot/kind`."""
    made = {}
    for slot, folder in adapters.items():
        for seed, kind in enumerate(DAMAGES.get(slot, ("noise-2",))):
            made[f"{slot}/{kind}"] = out / slot / kind
            if not (out / slot / kind / WEIGHTS).is_file():
                damage(folder, out / slot / kind, kind, seed)
    return made
