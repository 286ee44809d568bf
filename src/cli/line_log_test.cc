#include "cli/line_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"

namespace tdock::cli {
namespace {

TEST(LineLog, WritesAllLinesInTheirOrder) {
  std::ostringstream stream;
  {
    LineLog log(stream, [](const std::string& what) { ADD_FAILURE() << what; });
    for (int i = 0; i < 3; ++i) log.Add(std::to_string(i));
  }
  EXPECT_EQ(stream.str(), "0\n1\n2\n");
}

TEST(LineLog, SaysOnceThatADiskIsFull) {
  std::ofstream stream("/dev/full");
  std::vector<std::string> troubles;
  {
    LineLog log(stream, [&](const std::string& what) { troubles.push_back(what); });
    log.Add("a");
    log.Add("b");
  }
  EXPECT_THAT(troubles, testing::ElementsAre(Mentions({"written", "lost"})));
}

}  // namespace
}  // namespace tdock::cli
