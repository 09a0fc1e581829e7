snug_test(program_test ROOMS program)
snug_test(pack_test ROOMS program)
snug_test(sync_test ROOMS program)
snug_test(replay_test ROOMS program)
