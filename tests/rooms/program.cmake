snug_test(program_test ROOMS program)
snug_test(replay_test ROOMS program)
