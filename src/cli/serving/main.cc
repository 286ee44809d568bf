// The executable tdock-serve.
#include "cli/serving/commands.h"

int main(int argc, char** argv) {
  return tdock::cli::RunCommands(argc, argv, {{"chat", tdock::cli::AddChat}, {"serve", tdock::cli::AddServe}});
}
