snug_test(comm_test SOURCES count_allocations.cpp ROOMS comm)
# The thread sanitizer does not know what Open MPI does.
if(TARGET snug_mpi AND MPIEXEC_EXECUTABLE AND NOT SNUG_SANITIZE STREQUAL "thread")
  snug_test(mpi_test ROOMS comm)
  target_compile_definitions(mpi_test PRIVATE SNUG_MPIRUN="${MPIEXEC_EXECUTABLE}")
  set_target_properties(mpi_test PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR})
  set_tests_properties(mpi_test PROPERTIES LABELS slow RUN_SERIAL ON)
  add_dependencies(mpi_test snug_mpi)
endif()
