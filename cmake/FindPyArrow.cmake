# Finds Arrow and Parquet inside a pyarrow wheel: of TDOCK_ARROW_DIR, or else of .venv-parquet, .venv or .venv-peers.
# Defines PyArrow::PyArrow where it is there. The wheel has its libraries under versioned names only.

set(TDOCK_ARROW_DIR "" CACHE PATH "Folder of the installed pyarrow package (the one with include/); optional")
set(arrow_dir ${TDOCK_ARROW_DIR})
foreach(environment .venv-parquet .venv .venv-peers)
  if(NOT arrow_dir)
    file(GLOB arrow_dir ${PROJECT_SOURCE_DIR}/${environment}/lib/python3*/site-packages/pyarrow)
  endif()
endforeach()
if(arrow_dir)
  file(GLOB PyArrow_ARROW ${arrow_dir}/libarrow.so.*)
  file(GLOB PyArrow_PARQUET ${arrow_dir}/libparquet.so.*)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PyArrow REQUIRED_VARS PyArrow_ARROW PyArrow_PARQUET
  REASON_FAILURE_MESSAGE
  "Parquet files cannot be read: no pyarrow in .venv-parquet, where `scripts/setup.sh build` puts it")

if(PyArrow_FOUND AND NOT TARGET PyArrow::PyArrow)
  add_library(PyArrow::PyArrow INTERFACE IMPORTED)
  target_include_directories(PyArrow::PyArrow SYSTEM INTERFACE ${arrow_dir}/include)
  target_link_libraries(PyArrow::PyArrow INTERFACE ${PyArrow_PARQUET} ${PyArrow_ARROW})
endif()
