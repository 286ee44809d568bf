// The main function of the executable that CMakeLists.txt names in TDOCK_RUN.
#include "cli/executables.h"

int main(int argc, char** argv) { return tdock::cli::TDOCK_RUN(argc, argv); }
