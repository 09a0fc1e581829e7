snug_test(image_test ROOMS image)
snug_test(image_resize_test ROOMS image)
snug_test(image_processor_test ROOMS image)
snug_test(image_queue_test ROOMS image)
