snug_test(tape_test ROOMS model backend)
snug_test(rope_test ROOMS model)
