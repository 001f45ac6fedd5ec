package cli

// crashEnv makes the test binary crash in the way that its value names.
const crashEnv = "TRUEUP_TEST_CRASH"
