"""The split: by user and conversation, connected, and stable as data arrives.

Proved on random worlds; nothing is faked.
"""

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from curation.split import Groups, votes_holdout

TURNS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([f"u{n}" for n in range(8)])),
        st.sampled_from([f"c{n}" for n in range(8)]),
    ),
    max_size=30,
)


def sides(turns, percent=40):
    groups = Groups()
    for who, conversation in turns:
        groups.add(who, conversation)
    return groups.sides(percent)


def test_the_hash_is_the_documented_one():
    digest = int(hashlib.sha256(b"split-salt|ann").hexdigest(), 16) % 100
    assert votes_holdout("ann", digest + 1)
    assert not votes_holdout("ann", digest)


def test_about_the_asked_share_of_users_is_held_out():
    held = sum(votes_holdout(f"user-{n}", 15) for n in range(2000))
    assert 240 < held < 360


def test_all_conversations_of_a_user_are_on_one_side():
    found = sides([("ann", f"c{n}") for n in range(50)])
    assert len(set(found.values())) == 1


def test_without_a_user_the_conversation_decides():
    found = sides([(None, f"c{n}") for n in range(200)])
    assert found == {c: "holdout" if votes_holdout(c, 40) else "train" for c in found}


def test_a_shared_conversation_puts_both_users_on_the_train_side():
    held = next(f"u{n}" for n in range(99) if votes_holdout(f"u{n}", 40))
    trained = next(f"u{n}" for n in range(99) if not votes_holdout(f"u{n}", 40))
    apart = [(held, "own"), (trained, "shared")]
    assert sides(apart) == {"own": "holdout", "shared": "train"}
    assert sides([*apart, (held, "shared")]) == {"own": "train", "shared": "train"}


@given(TURNS)
@settings(deadline=None)
def test_connected_users_and_conversations_share_a_side(turns):
    found = sides(turns)
    for who, conversation in turns:
        for other_who, other in turns:
            if who is not None and who == other_who:
                assert found[conversation] == found[other]


@given(TURNS, TURNS)
@settings(deadline=None)
def test_more_data_never_moves_anything_from_train_to_holdout(turns, more):
    before, after = sides(turns), sides(turns + more)
    assert all(after[c] == "train" for c, side in before.items() if side == "train")


@given(TURNS, TURNS)
@settings(deadline=None)
def test_a_group_that_gets_no_new_member_keeps_its_side(turns, more):
    strangers = [(f"new {who}", f"new {conversation}") for who, conversation in more]
    before, after = sides(turns), sides(turns + strangers)
    assert all(after[c] == side for c, side in before.items())


@given(TURNS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_turns_does_not_matter(turns, rng):
    assert sides(turns) == sides(rng.sample(turns, len(turns)))
