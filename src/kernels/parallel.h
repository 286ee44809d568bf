// Loops that are divided among threads.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/base/workers.h"

namespace tdock::kernels {

using LoopBody = absl::FunctionRef<void(int64_t begin, int64_t end)>;

// Calls body(begin, end) for ranges of at least `grain` numbers, but for the last one, that together are 0 … count - 1:
// on the team that this thread leads, or else as at::parallel_for() does. Loops inside of one that is divided are not
// divided. Who computes which range depends on timing. Rethrows what `body` throws, once no range is being worked on.
void ParallelFor(int64_t count, int64_t grain, LoopBody body);

// Calls `body`; meanwhile this thread leads a team of the workers' threads. They wait for its loops without sleeping,
// because waking a thread takes longer than most loops do: for work of milliseconds with little between the loops.
void WithTeam(Workers& workers, absl::FunctionRef<void()> body);

}  // namespace tdock::kernels
