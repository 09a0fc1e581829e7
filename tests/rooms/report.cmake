snug_test(report_test ROOMS report)
snug_test(explain_test ROOMS report)
