// The executable tdock-runs.
#include "cli/runs/commands.h"

int main(int argc, char** argv) {
  return tdock::cli::RunCommands(argc, argv, {{"merge", tdock::cli::AddMerge}, {"runs", tdock::cli::AddRuns}});
}
