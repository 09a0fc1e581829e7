snug_test(measure_test ROOMS measure)
set_tests_properties(measure_test PROPERTIES LABELS slow)
