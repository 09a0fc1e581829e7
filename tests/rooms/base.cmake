snug_test(file_test ROOMS base)
