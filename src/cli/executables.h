// Main functions of the executables. Each is in the library with its subcommands, so that main.cc compiles at once.
#pragma once

namespace tdock::cli {

int RunTdock(int argc, char** argv);        // cli: one process that trains or generates
int RunTdockServe(int argc, char** argv);   // cli/inference
int RunTdockRuns(int argc, char** argv);    // cli/runs
int RunTdockLaunch(int argc, char** argv);  // cli/ranks

}  // namespace tdock::cli
