// For tests: an environment that is a program and talks with every model in the same way.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"

namespace tdock::trainer {

// The overrides of a run that talks with it, and waits for it as long as it takes. Two turns: the environment says "7"
// after the first answer. F in `before`, which is done before each answer to a message `m`, is `folder`, where the
// program is, and `turn` the number of the model's turns.
inline std::vector<std::string> TalkingProgram(const std::string& folder, const std::string& before = "pass") {
  const std::string path = folder + "/talk.py";
  EXPECT_EQ(WriteFileAtomically(Env::Real(), path,
                                absl::StrCat(R"(
import json, os, sys, time
F = ')",
                                             folder, R"(/'
def say(**message): print(json.dumps(message), flush=True)
json.loads(sys.stdin.readline())
say(type="hello", protocol=1, name="talk", kind="environment", episodes=4)
turns = {}
for line in sys.stdin:
    m = json.loads(line)
    episode, turn = m["episode"], turns.pop(m["episode"], 0)
    if m["type"] == "end": continue
    )",
                                             before, R"(
    if m["type"] == "reset":
        say(type="observation", episode=episode, messages=[], done=False)
    else:
        said = m["message"]["content"]
        seven = [{"role": "user", "content": "7"}] if turn == 0 else []
        rewards = {"odd": sum(c in "13579" for c in said) / 4, "turn": 0.5}
        say(type="observation", episode=episode, messages=seven, rewards=rewards, done=turn == 1)
        turns[episode] = turn + 1
)")),
            absl::OkStatus());
  return {"environment.format=text",
          "environment.tool_format=none",
          "environment.max_turns=3",
          "environment.timeout=86400",
          "environment.start_timeout=86400",
          "data.max_response_length=9",
          "environment.program=python3 -S " + path};
}

}  // namespace tdock::trainer
