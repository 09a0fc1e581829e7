snug_test(report_test ROOMS report)
snug_test(explain_test ROOMS report)
snug_test(page_server_test ROOMS report)
