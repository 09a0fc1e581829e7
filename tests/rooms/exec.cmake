snug_test(executor_test ROOMS exec)
