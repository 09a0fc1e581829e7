snug_test(objective_test ROOMS objective)
