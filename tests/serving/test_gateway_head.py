"""Proves that the trained router head routes, and that a table with a bad one is refused.

The head is a real artifact with hand-made weights; the engine, a stub, tells the hidden state.
"""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from gateway_answers import PROFILE, slots_answer
from mol_server import mol_server, version, write_slots
from stub_engine import stub_engine

from serving.head import HeadCard, RouterHead, save_head
from serving.slot_table import SlotEntry


@pytest.fixture
def stub():
    with stub_engine() as stub:
        stub.reply = slots_answer("L0", "Done.")
        yield stub


def made_head(home: Path) -> RouterHead:
    """Make a head that takes the label of the largest of four numbers."""
    card = HeadCard(
        labels=PROFILE.labels, dims=4, width=4, base_digest="sha256:" + "0" * 64, temperature=0.2
    )
    arrays = {name: np.zeros(shape, np.float32) for name, shape in card.shapes.items()}
    arrays["std"] += 1.0
    for n in range(3):
        arrays[f"layers.{n}.weight"] = np.eye(4, dtype=np.float32)
    return save_head(home, card, arrays)


def table_with(home: Path, head: RouterHead) -> None:
    folder = next((home / "heads").iterdir()).relative_to(home)
    slots = [SlotEntry(slot=s, **version(s)) for s in PROFILE.labels]
    router = SlotEntry(
        slot="router", role="head", champion=head.name, digest=head.digest, path=str(folder)
    )
    write_slots(home, *slots, router)


def ask(mol) -> httpx.Response:
    body = {"model": "mol", "messages": [{"role": "user", "content": "Write f."}]}
    return httpx.post(f"{mol.url}/v1/chat/completions", json=body)


def test_the_head_routes_and_its_version_and_confidence_are_recorded(tmp_path, stub) -> None:
    head = made_head(tmp_path)
    table_with(tmp_path, head)
    stub.embedding = [0.1, 0.0, 0.9, 0.2]
    with mol_server(tmp_path, stub.url, router={"mode": "head"}) as mol:
        reply = ask(mol).json()
        (turn,) = mol.records("turn", 1)
        route = mol.records("hop", 3)[0]

    assert reply["metadata"]["mol_slot"] == turn["slot"] == "L2"
    assert (route["role"], route["model"]) == ("route", head.name)
    assert route["completion"]["content"] == "L2"
    assert route["confidence"] == pytest.approx(head.probabilities([0.1, 0.0, 0.9, 0.2])["L2"])
    assert not any("structured_outputs" in asked.body for asked in stub.chats)


def test_a_head_of_other_dimensions_fails_the_turn_with_a_reason(tmp_path, stub) -> None:
    table_with(tmp_path, made_head(tmp_path))
    stub.embedding = [0.1, 0.2]
    with mol_server(tmp_path, stub.url, router={"mode": "head"}) as mol:
        assert ask(mol).status_code == 502
        (turn,) = mol.records("turn", 1)
        (hop,) = mol.records("hop", 1)
    assert (hop["role"], hop["status"]) == ("route", "engine_error")
    assert hop["error"] == turn["error"]
    assert (turn["status"], turn["slot"]) == ("failed", None)
    assert "hidden state" in turn["error"]


def test_a_table_with_a_damaged_head_is_refused_and_the_old_one_serves_on(tmp_path, stub) -> None:
    head = made_head(tmp_path)
    table_with(tmp_path, head)
    stub.embedding = [0.9, 0.0, 0.1, 0.2]
    with mol_server(tmp_path, stub.url, router={"mode": "head"}) as mol:
        admin = mol.server.admin_url
        key = {"authorization": "Bearer " + (tmp_path / "admin.key").read_text()}
        table = httpx.get(f"{admin}/slots", headers=key).json()
        router = table["slots"][-1]
        folder = tmp_path / "heads" / "damaged"
        folder.mkdir()
        for file in (tmp_path / router["path"]).iterdir():
            (folder / file.name).write_bytes(file.read_bytes().replace(b"0.2", b"0.3"))
        router |= {"path": "heads/damaged", "generation": router["generation"] + 1}

        refused = httpx.put(f"{admin}/slots", headers=key, content=json.dumps(table))

        assert refused.status_code == 422, refused.text
        assert "digest" in refused.json()["error"]["message"]
        assert ask(mol).json()["metadata"]["mol_slot"] == "L0"
