// Scores of a reward program, from a pool of its processes.
#pragma once

#include <memory>

#include "trainer/reward/external/program.h"
#include "trainer/reward/external/score_source.h"

namespace tdock::reward {

// Processes are started when they are needed, and then kept. When one fails, those samples of its batch that it has not
// scored are sent again one by one, so that a sample that makes the program fail is known by itself; each failure with
// a sample alone, each time-out at a sample, and each error that the program itself gives for one is a try of that
// sample. Nobody else's tries are counted.
//
// Score() fails if the program has never said hello and does not, and after more than ProgramOptions::max_restarts
// failures in a row without a score between them.
std::unique_ptr<ScoreSource> MakeProgramSource(ProgramOptions options);

}  // namespace tdock::reward
