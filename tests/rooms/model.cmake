snug_test(tape_test ROOMS model backend)
