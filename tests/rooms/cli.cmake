foreach(name
        cli_test
        cli_checkpoint_test
        cli_dtypes_test
        cli_export_test
        cli_families_test
        cli_image_adapters_test
        cli_image_files_test
        cli_images_test
        cli_init_test
        cli_inputs_test
        cli_learning_test
        cli_log_test
        cli_models_test
        cli_new_tokens_test
        cli_owner_test
        cli_plan_test
        cli_evaluation_test
        cli_optimizer_test
        cli_preferences_test
        cli_distillation_test
        cli_reward_test
        cli_report_test
        cli_tokens_test
        cli_use_test
        option_pages_test
        prompting_test
        scaling_test
        scenarios_test
        unequal_ranks_test
        weight_map_test)
  snug_test(${name})
  target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(${name} PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>")
  add_dependencies(${name} snug)
endforeach()
target_link_libraries(scaling_test PRIVATE snug_base)
target_link_libraries(cli_dtypes_test PRIVATE snug_tensor)
target_link_libraries(cli_new_tokens_test PRIVATE snug_cli)
target_link_libraries(cli_export_test PRIVATE snug_format)
target_link_libraries(cli_image_adapters_test PRIVATE snug_format)
target_link_libraries(prompting_test PRIVATE snug_cli)
target_link_libraries(option_pages_test PRIVATE snug_cli)
foreach(name cli_log_test option_pages_test)
  target_compile_definitions(${name} PRIVATE SNUG_DOCS="${PROJECT_SOURCE_DIR}/docs")
endforeach()
target_link_libraries(weight_map_test PRIVATE snug_cli)
foreach(name scenarios_test scaling_test)
  target_compile_definitions(${name} PRIVATE SNUG_DOCS="${PROJECT_SOURCE_DIR}/docs")
  set_tests_properties(${name} PROPERTIES LABELS slow)
endforeach()
add_test(NAME images_on_four_ranks_test
         COMMAND cli_images_test --gtest_also_run_disabled_tests --gtest_filter=*ThousandSteps)
set_tests_properties(images_on_four_ranks_test PROPERTIES LABELS slow)
add_test(NAME scaling_test_of_70b COMMAND scaling_test --gtest_also_run_disabled_tests --gtest_filter=*70B*)
set_tests_properties(cli_image_adapters_test PROPERTIES LABELS slow)
set_tests_properties(scaling_test_of_70b PROPERTIES LABELS "slow;nightly")
set_tests_properties(scaling_test scaling_test_of_70b PROPERTIES PROCESSORS 2)
set_tests_properties(unequal_ranks_test PROPERTIES LABELS slow)
snug_test(reply_text_test ROOMS cli)
snug_test(options_test ROOMS cli)
snug_test(adapter_spellings_test ROOMS cli)
snug_test(adapter_test ROOMS cli)
snug_test(adapter_training_test ROOMS cli)
snug_test(padded_ranks_test ROOMS cli)
snug_test(dora_test ROOMS cli)
snug_test(doctor_test ROOMS cli)
snug_test(interrupt_test ROOMS cli)
snug_test(launch_test ROOMS cli)
if(TARGET snug_mpi AND MPIEXEC_EXECUTABLE AND NOT SNUG_SANITIZE STREQUAL "thread")
  snug_test(ranks_test ROOMS cli)
  target_link_libraries(ranks_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(ranks_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>" SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}"
                             SNUG_FAULTY_DEVICE="$<TARGET_FILE:snug_faulty_device>")
  set_target_properties(ranks_test PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR})
  set_tests_properties(ranks_test PROPERTIES LABELS slow RUN_SERIAL ON)
  add_dependencies(ranks_test snug snug_mpi snug_faulty_device)
  snug_test(hosts_test)
  target_link_libraries(hosts_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(hosts_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>" SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}")
  set_tests_properties(hosts_test PROPERTIES LABELS slow RUN_SERIAL ON)
  add_dependencies(hosts_test snug snug_mpi)
  snug_test(tokens_ranks_test)
  target_link_libraries(tokens_ranks_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(tokens_ranks_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                             SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}")
  set_tests_properties(tokens_ranks_test PROPERTIES LABELS slow RUN_SERIAL ON)
  add_dependencies(tokens_ranks_test snug snug_mpi)
  snug_test(host_peak_test ROOMS format)
  target_link_libraries(host_peak_test PRIVATE nlohmann_json::nlohmann_json)
  target_compile_definitions(host_peak_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                             SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}")
  set_tests_properties(host_peak_test PROPERTIES LABELS slow RUN_SERIAL ON)
  add_dependencies(host_peak_test snug snug_mpi)
endif()
snug_test(limits_test)
target_link_libraries(limits_test PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(limits_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>")
set_tests_properties(limits_test PROPERTIES LABELS slow)
add_dependencies(limits_test snug)
# The program itself, on a disk that fills up.
add_executable(snug_full_disk ${PROJECT_SOURCE_DIR}/src/cli/main.cpp full_disk.cpp)
target_link_libraries(snug_full_disk PRIVATE snug_cli ${CMAKE_DL_LIBS})
target_compile_definitions(snug_full_disk PRIVATE SNUG_VERSION="${PROJECT_VERSION}")
snug_test(disk_test ROOMS backend backend_cpu)
target_link_libraries(disk_test PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(disk_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                           SNUG_FULL_DISK="$<TARGET_FILE:snug_full_disk>")
set_tests_properties(disk_test PROPERTIES LABELS slow)
add_dependencies(disk_test snug snug_full_disk)
# The program itself, on a device that is lost: the names are those of the constructor of sessions, and of
# kernel_locks_hold().
add_executable(snug_faulty_device ${PROJECT_SOURCE_DIR}/src/cli/main.cpp faulty_device.cpp)
target_link_libraries(snug_faulty_device PRIVATE snug_cli)
target_link_options(snug_faulty_device PRIVATE LINKER:--wrap=_ZN4snug7SessionC1ENS_7JobSpecENS_8CompiledERKNS0_9ResourcesE
                    LINKER:--wrap=_ZN4snug17kernel_locks_holdERKNSt10filesystem7__cxx114pathE)
set_target_properties(snug_faulty_device PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR})
target_include_directories(snug_faulty_device PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(snug_faulty_device PRIVATE SNUG_VERSION="${PROJECT_VERSION}")
snug_test(faults_test)
target_link_libraries(faults_test PRIVATE nlohmann_json::nlohmann_json)
target_compile_definitions(faults_test PRIVATE SNUG_BINARY="$<TARGET_FILE:snug>"
                           SNUG_FAULTY_DEVICE="$<TARGET_FILE:snug_faulty_device>")
set_tests_properties(faults_test PROPERTIES LABELS slow)
add_dependencies(faults_test snug snug_faulty_device)
snug_test(corpus_test ROOMS cli)
snug_test(image_text_test ROOMS cli)
snug_test(video_test ROOMS cli)
snug_test(token_cache_test ROOMS cli)
