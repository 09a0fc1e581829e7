snug_test(report_test ROOMS report)
