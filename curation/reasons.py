"""Every reason why a turn, a hop or a row is left out, in the words of the funnel."""

# Turns
OTHER_SLOT = "answered by another slot"
TURN_FAILED = "turn failed or abandoned"
CANARY = "canary turn"
ROLLED_BACK = "answered by a version that was rolled back"
AFTER_CANARY = "after a canary turn"
AFTER_ROLLED_BACK = "after an answer of a version that was rolled back"
ENGINE_FAILED = "engine error"
ASKED_AGAIN = "asked again"
NO_OUTCOME = "no outcome"
IMPLICIT_ONLY = "implicit outcome only"
BLAME_UNKNOWN = "blame unknown"
LOW_CONFIDENCE = "blame below confidence"
OTHER_ADAPTER = "blamed on another adapter"
BLAMED_ON = {
    klass: f"blamed on the {klass}"
    for klass in ("router", "adapter", "summary", "tool", "fallback", "user")
}
NO_CORRECTION = "no correction"
TEXT_FOR_CALL = "text edit after a tool call"
NO_HOP = "no answer hop of this slot"
NO_ROUTE = "no route hop"
ROUTE_UNVERIFIED = "route not verified"
ROUTE_NOT_FOLLOWED = "route not followed"
RIGHT_SLOT_UNKNOWN = "right slot unknown"
NOT_CHOSEN = "slot not chosen by a router"
EXPLORED = "explored and failed"

# Hops
HOP_FAILED = "hop failed or abandoned"
EMPTY = "empty completion"
TRUNCATED = "truncated answer"
NOT_AN_ANSWER = "completion is not an assistant message"
NOT_JSON = "tools or arguments are not JSON"
VIEW_END = "view does not end with a user, a tool or a prefill"
TOOL_RESULT = "completion quotes a tool result"

# Rows
TOO_LONG = "too long"
DUPLICATE = "duplicate"
SUPERSEDED = "superseded"
ALSO_IN_TRAIN = "prompt also in train"
SEALED = "in gate suite"
UNBALANCED = "more than the other duty allows"
REPLAY = "more replay than wanted"
