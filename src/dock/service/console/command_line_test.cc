#include "dock/service/console/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "dock/service/console/testing/example_dock.h"

namespace tdock::console {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Called {
  int code = 0;
  std::string out = {};
  std::string err = {};
};

// The command with a dock in place of a server, and what it asked for.
class CommandLine : public testing::Test {
 protected:
  ExampleDock example_;
  std::map<std::string, std::string> variables_ = {{"TDOCK_ADDRESS", "127.0.0.1:7077"}};
  ConnectOptions connected_;
  std::optional<ServeOptions> served_;

  Called Call(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "tdock-dock");
    const Wiring wiring = {.connect = [this](const ConnectOptions& options) -> absl::StatusOr<std::unique_ptr<Dock>> {
                             connected_ = options;
                             if (example_.dock == nullptr) return absl::UnavailableError("nobody listens");
                             return std::move(example_.dock);
                           },
                           .serve =
                               [this](const ServeOptions& options) {
                                 served_ = options;
                                 return absl::OkStatus();
                               },
                           .variable = [this](const char* name) -> std::optional<std::string> {
                             const auto it = variables_.find(name);
                             return it == variables_.end() ? std::nullopt : std::optional(it->second);
                           },
                           .uid = 1000,
                           .version = "1.2.3"};
    std::ostringstream out, err;
    const int code = RunCommandLine(static_cast<int>(arguments.size()), arguments.data(), wiring, out, err);
    return {code, out.str(), err.str()};
  }
};

TEST_F(CommandLine, EveryVerbHasHelpWithAnExample) {
  const std::string all = Call({"--help"}).out;
  for (const char* verb : {"serve", "ping", "status", "explain", "list", "clear", "drop"}) {
    EXPECT_THAT(all, HasSubstr(verb));
    const Called help = Call({verb, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr(std::string("For example:\n  tdock dock ") + verb));
  }
  EXPECT_EQ(Call({"--version"}).out, "1.2.3\n");
}

TEST_F(CommandLine, WhatCannotBeParsedIsTheCallersMistake) {
  for (const std::vector<const char*>& wrong :
       std::vector<std::vector<const char*>>{{},
                                             {"nonsense"},
                                             {"status", "a", "b"},
                                             {"explain", "train"},
                                             {"list", "train", "--limit", "0"},
                                             {"list", "train", "--from", "x"},
                                             {"clear", "train"},
                                             {"clear", "train", "--rows", "1", "--everything"},
                                             {"serve", "--drain", "soon"}}) {
    const Called called = Call(wrong);
    EXPECT_EQ(called.code, 2);
    EXPECT_EQ(called.out, "");
    EXPECT_NE(called.err, "");
  }
}

TEST_F(CommandLine, APingSaysThatTheServerAnswersOrFailsInTime) {
  const Called called = Call({"ping", "--address", "unix:/run/d.sock", "--within", "0.5"});
  EXPECT_EQ(called.code, 0);
  EXPECT_THAT(called.out, HasSubstr("answers"));
  EXPECT_EQ(connected_.reconnect_for, absl::Milliseconds(500));
  EXPECT_EQ(connected_.answer_within, absl::Milliseconds(500));
  EXPECT_EQ(Call({"ping", "--within", "0"}).code, 2);
}

TEST_F(CommandLine, TheAddressIsAnOptionOrAVariable) {
  EXPECT_EQ(Call({"status"}).code, 0);
  EXPECT_EQ(connected_.address, "127.0.0.1:7077");
  ExampleDock again;
  example_.dock = std::move(again.dock);
  EXPECT_EQ(Call({"status", "--address", "unix:/run/d.sock", "--token-file", "t"}).code, 0);
  EXPECT_EQ(connected_.address, "unix:/run/d.sock");
  EXPECT_EQ(connected_.token_file, "t");
}

TEST_F(CommandLine, FindsWhatServeServesByDefault) {
  std::string folder = "/tmp/tdock-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  variables_ = {{"XDG_RUNTIME_DIR", folder}};
  EXPECT_EQ(Call({"status"}).code, 0);
  EXPECT_EQ(connected_.address, "127.0.0.1:7077");
  ASSERT_EQ(Call({"serve"}).code, 0);
  EXPECT_EQ(connected_.address, served_->listen);
  // Where its socket is, that is faster; but it takes no TLS.
  std::ofstream(served_->socket).put('x');
  ExampleDock again;
  example_.dock = std::move(again.dock);
  EXPECT_EQ(Call({"status"}).code, 0);
  EXPECT_EQ(connected_.address, "unix:" + served_->socket);
  Call({"status", "--tls-ca", "c"});
  EXPECT_EQ(connected_.address, "127.0.0.1:7077");
  std::filesystem::remove_all(folder);
}

TEST_F(CommandLine, AServerThatIsOwnedSaysWhyItDoesNotStartToItsOwner) {
  const Called called = Call({"serve", "--owned-folder", "/tmp/x", "--listen", "foo", "--memory", "-1"});
  EXPECT_EQ(called.code, 2);
  EXPECT_EQ(called.err, "");
  EXPECT_THAT(called.out, StartsWith("error 3 "));
  EXPECT_THAT(called.out, HasSubstr("--memory"));
}

TEST_F(CommandLine, RefusesAddressesThatAreNone) {
  for (const char* wrong : {"localhost", "localhost:", "localhost:0", "localhost:70000", "::1:80", "[::1:80", "[]:80",
                            "unix:relative", "a b:80", "http://x:80"}) {
    const Called called = Call({"status", "--address", wrong});
    EXPECT_EQ(called.code, 2) << wrong;
    EXPECT_THAT(called.err, HasSubstr(" status: --address: ")) << wrong;
  }
  EXPECT_EQ(Call({"status", "--address", "[::1]:80"}).code, 0);
  EXPECT_EQ(Call({"status", "--tls-cert", "c"}).code, 2);
  EXPECT_EQ(Call({"status", "--address", "unix:/s", "--tls-ca", "c"}).code, 2);
}

TEST_F(CommandLine, AnErrorIsNamedAndGivesTheExitCode) {
  const Called missing = Call({"status", "nowhere"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, Mentions({" status: ", "nowhere"}));
  const Called unreachable = Call({"status"});
  EXPECT_EQ(unreachable.code, 1);
  EXPECT_THAT(unreachable.err, EndsWith(" status: nobody listens\n"));
}

TEST_F(CommandLine, OptionsReachTheDock) {
  EXPECT_THAT(Call({"list", "--having", "rewards", "--tag", "split=hard", "train", "--json"}).out,
              HasSubstr("\"key\": \"a/0\""));
}

TEST_F(CommandLine, RowTakesAPartitionAndANumber) {
  EXPECT_THAT(Call({"row", "train", "3"}).out, StartsWith("row 3 of train: group 7"));
  for (const std::vector<const char*>& wrong : {std::vector<const char*>{"row", "train"}, {"row", "train", "x"}}) {
    const Called called = Call(wrong);
    EXPECT_EQ(called.code, 2);
    EXPECT_THAT(called.err, HasSubstr("ROW"));
  }
}

TEST_F(CommandLine, ClearTakesRowsGroupsOrTags) {
  EXPECT_EQ(Call({"clear", "--rows", "1,5-6", "train"}).out, "removed 3 rows of train\n");
  ExampleDock other;
  example_.dock = std::move(other.dock);
  EXPECT_EQ(Call({"clear", "train", "--tag", "split=hard"}).out, "removed 1 row of train\n");
  ExampleDock third;
  example_.dock = std::move(third.dock);
  const Called refused = Call({"clear", "train", "--everything"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("8 rows"));
}

TEST_F(CommandLine, DropRemovesAPartitionIfThatIsConfirmed) {
  const Called refused = Call({"drop", "train"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, Mentions({"'train'", "8 rows", "3 consumers", "--yes"}));
  ExampleDock other;
  example_.dock = std::move(other.dock);
  EXPECT_EQ(Call({"drop", "train", "--yes"}).out, "removed train with 8 rows\n");
  ExampleDock third;
  example_.dock = std::move(third.dock);
  const Called unknown = Call({"drop", "trian", "--yes"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("trian"));
}

TEST_F(CommandLine, OutputThatCannotBeWrittenIsAnError) {
  std::ostream broken(nullptr);
  std::ostringstream err;
  const char* const arguments[] = {"tdock-dock", "--help"};
  EXPECT_EQ(RunCommandLine(2, arguments, {}, broken, err), 1);
  EXPECT_THAT(err.str(), HasSubstr("cannot write"));
}

TEST_F(CommandLine, ServeWithoutFlagsListensOnThisMachineOnly) {
  EXPECT_EQ(Call({"serve"}).code, 0);
  ASSERT_TRUE(served_);
  EXPECT_EQ(served_->listen, "127.0.0.1:7077");
  EXPECT_EQ(served_->socket, "/tmp/tdock-1000.sock");
  EXPECT_EQ(served_->memory_bytes, 0);
  EXPECT_EQ(served_->metrics, "");
  EXPECT_EQ(served_->drain, absl::Seconds(10));
  EXPECT_EQ(served_->session_grace, absl::Seconds(1));
  EXPECT_FALSE(served_->insecure);
  variables_["XDG_RUNTIME_DIR"] = "/run/user/1000/";
  EXPECT_EQ(Call({"serve"}).code, 0);
  EXPECT_EQ(served_->socket, "/run/user/1000/tdock.sock");
}

TEST_F(CommandLine, ServeGivesOnWhatItWasTold) {
  EXPECT_EQ(Call({"serve",
                  "--listen",
                  "0.0.0.0:0",
                  "--socket",
                  "none",
                  "--memory",
                  "1.5GiB",
                  "--token-file",
                  "t",
                  "--tls-cert",
                  "c",
                  "--tls-key",
                  "k",
                  "--tls-ca",
                  "a",
                  "--insecure",
                  "--metrics",
                  ":9464",
                  "--drain",
                  "0.5",
                  "--session-grace",
                  "3"})
                .code,
            0);
  EXPECT_EQ(served_->listen, "0.0.0.0:0");
  EXPECT_EQ(served_->socket, "");
  EXPECT_EQ(served_->memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(served_->token_file + served_->tls_cert + served_->tls_key + served_->tls_ca, "tcka");
  EXPECT_TRUE(served_->insecure);
  EXPECT_EQ(served_->metrics, ":9464");
  EXPECT_EQ(served_->drain, absl::Milliseconds(500));
  EXPECT_EQ(served_->session_grace, absl::Seconds(3));
}

TEST_F(CommandLine, ServeNamesEverythingThatIsWrong) {
  const Called called = Call({"serve", "--listen", "x", "--socket", "relative", "--memory", "1MiB", "--tls-ca", "a",
                              "--tls-key", "k", "--metrics", "y:z", "--drain", "-1", "--session-grace", "nan"});
  EXPECT_EQ(called.code, 2);
  EXPECT_FALSE(served_);
  for (const char* word : {"--listen: 'x'", "--socket: 'relative'", "--memory:", "--tls-ca", "--tls-cert and --tls-key",
                           "--metrics: 'y:z'", "--drain:", "--session-grace:"}) {
    EXPECT_THAT(called.err, HasSubstr(word));
  }
  EXPECT_EQ(Call({"serve", "--listen", "none", "--socket", "none"}).code, 2);
  EXPECT_EQ(Call({"serve", "--socket", ("/" + std::string(107, 'x')).c_str()}).code, 2);
}

TEST(Sizes, HaveBinaryUnits) {
  EXPECT_EQ(*ParseBytes("--memory", "17"), 17);
  EXPECT_EQ(*ParseBytes("--memory", "64KiB"), 64 << 10);
  EXPECT_EQ(*ParseBytes("--memory", "0.5MiB"), 1 << 19);
  EXPECT_EQ(*ParseBytes("--memory", "8GiB"), int64_t{8} << 30);
  EXPECT_EQ(*ParseBytes("--memory", "2TiB"), int64_t{2} << 40);
  for (const char* wrong : {"", "GiB", "-1GiB", "8GB", "8 GiB", "1e3", "0x10", "nan", "4194304TiB", "1.2.3", "8gib"}) {
    EXPECT_THAT(ParseBytes("--memory", wrong).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"--memory", absl::StrCat("'", wrong, "'")}));
  }
}

}  // namespace
}  // namespace tdock::console
