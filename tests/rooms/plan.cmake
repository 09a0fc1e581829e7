snug_test(machine_test ROOMS plan)
