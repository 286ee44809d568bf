// Finds where each variable of a template is kept, as Jinja's compiler does. Internal to this module.
//
// A block sees the variables of the blocks around it. What it assigns to is a variable of its own, which begins as a
// copy of the outer one of that name; an `if` is no block in this sense. Macros, the bodies of calls and recursive
// loops are functions: they have frames, and see the variables of the functions around them as these are when they run.
#pragma once

#include "absl/status/status.h"
#include "text/jinja/syntax.h"

namespace tdock::jinja {

// Also refuses filters and tests that do not exist, except below an `if`, where Jinja finds out at run time, and
// `break` and `continue` outside of loops. InvalidArgument with the line.
absl::Status ResolveVariables(Program& program);

}  // namespace tdock::jinja
