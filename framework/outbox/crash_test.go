package outbox

const envChild = "HEADRACE_TEST_OUTBOX_CHILD"

func childMain() {}
