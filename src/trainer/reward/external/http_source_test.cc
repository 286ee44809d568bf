#include "trainer/reward/external/http_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "trainer/reward/external/http_url.h"

namespace tdock::reward {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A server on the loopback interface whose connections a test writes byte by byte.
class RawServer {
 public:
  struct Connection {
    int socket;
    int number;           // from 0
    std::string request;  // with its body
    std::function<bool()> ending;
    void Say(const std::string& text) const { (void)!::send(socket, text.data(), text.size(), MSG_NOSIGNAL); }
    void Answer(const std::string& head, const std::string& body) const {
      Say(absl::StrCat("HTTP/1.1 ", head, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
    }
    // Until the client closes.
    void Drip(const std::string& text) const {
      char byte;
      for (size_t i = 0;; i = (i + 1) % text.size()) {
        pollfd watched{.fd = socket, .events = POLLIN, .revents = 0};
        if (::poll(&watched, 1, 20) > 0 && ::recv(socket, &byte, 1, 0) <= 0) return;
        Say(text.substr(i, 1));
      }
    }
    std::vector<size_t> Samples() const {
      std::vector<size_t> samples;
      const auto json = nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
      for (const auto& sample : json["samples"]) samples.push_back(sample["sample"]);
      return samples;
    }
    std::string Scores() const {
      nlohmann::json scores = nlohmann::json::array();
      for (const size_t sample : Samples()) scores.push_back({{"sample", sample}, {"score", 0.5}});
      return nlohmann::json({{"scores", scores}}).dump();
    }
  };

  explicit RawServer(std::function<void(const Connection&)> serve) : serve_(std::move(serve)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~RawServer() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (std::thread& thread : threads_) thread.join();
    ::close(listener_);
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/score?key=secret"); }
  int connections() const { return connections_; }

 private:
  void Accept() {
    for (int number = 0;; ++number) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      ++connections_;
      threads_.emplace_back([this, socket, number] {
        serve_({.socket = socket, .number = number, .request = Read(socket), .ending = {}});
        ::shutdown(socket, SHUT_WR);  // a close would reset the connection if something is unread
        char rest[4096];
        while (::recv(socket, rest, sizeof rest, 0) > 0) continue;
        ::close(socket);
      });
    }
  }
  static std::string Read(int socket) {
    std::string all;
    char chunk[4096];
    for (;;) {
      const size_t head = all.find("\r\n\r\n");
      const size_t field = all.find("Content-Length: ");
      size_t body = 0;
      if (head != std::string::npos && field != std::string::npos &&
          absl::SimpleAtoi(all.substr(field + 16, all.find('\r', field) - field - 16), &body) &&
          all.size() >= head + 4 + body) {
        return all;
      }
      const ssize_t got = ::recv(socket, chunk, sizeof chunk, 0);
      if (got <= 0) return all;
      all.append(chunk, static_cast<size_t>(got));
    }
  }

  const std::function<void(const Connection&)> serve_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> connections_ = 0;
  std::thread accepting_;
  std::vector<std::thread> threads_;
};

std::vector<Answer> Answers(size_t count) {
  std::vector<Answer> answers(count);
  for (size_t i = 0; i < count; ++i) {
    answers[i].prompt = absl::StrCat("question ", i);
    answers[i].response = "\xFF 42";
  }
  return answers;
}

absl::Status NoStop() { return absl::OkStatus(); }

struct Result {
  absl::Status status;
  std::map<size_t, absl::StatusOr<SourceScore>> scores;

  const absl::Status& error(size_t i) const { return scores.at(i).status(); }
  std::vector<float> values() const {
    std::vector<float> all;
    for (const auto& [index, score] : scores) all.push_back(score.ok() ? *score->score : -1);
    return all;
  }
};

Result ScoreAll(HttpOptions options, size_t count, const StopCheck& check_stop = NoStop) {
  options.name = "judge";
  const auto source = MakeHttpSource(options);
  EXPECT_TRUE(source.ok()) << source.status();
  Result result;
  Mutex mu;
  result.status = (*source)->Score(Answers(count), check_stop, [&](size_t index, absl::StatusOr<SourceScore> score) {
    MutexLock lock(mu);
    EXPECT_TRUE(result.scores.emplace(index, std::move(score)).second) << index << " was scored twice";
  });
  return result;
}

HttpOptions Judge(const std::string& url) { return {.name = "judge", .url = url, .timeout = kNever, .retries = 1}; }

// What a single sample gets from a server that always answers with `text`.
absl::Status ErrorFor(const std::string& text) {
  RawServer server([&](const auto& connection) { connection.Say(text); });
  HttpOptions options = Judge(server.url());
  options.retries = 0;
  const Result result = ScoreAll(options, 1);
  EXPECT_TRUE(result.status.ok()) << result.status;
  return result.error(0);
}

std::string Ok(const std::string& body) {
  return absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

TEST(HttpSource, SendsBatchesSeveralAtATimeAndPassesScoresOn) {
  RawServer server([](const auto& c) { c.Answer("200 OK", c.Scores()); });
  HttpOptions options = Judge(server.url());
  options.batch_size = 4;
  options.connections = 3;
  const Result result = ScoreAll(options, 10);
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(result.values(), std::vector<float>(10, 0.5F));
  EXPECT_EQ(server.connections(), 3);
}

TEST(HttpSource, ReadsChunkedAnswersAndThoseThatEndWithTheConnection) {
  RawServer server([](const auto& c) {
    const std::string body = c.Scores();
    if (c.number == 0) return c.Say("HTTP/1.1 200 OK\r\n\r\n" + body);
    c.Say(absl::StrCat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", absl::Hex(body.size()), "\r\n", body,
                       "\r\n0\r\n\r\n"));
  });
  for (int i = 0; i < 2; ++i) EXPECT_THAT(ScoreAll(Judge(server.url()), 1).values(), ElementsAre(0.5F));
}

TEST(HttpSource, RepeatsWhatIsNobodysFault) {
  for (const char* trouble : {"500 Oops", "502 Bad", "503 Busy\r\nRetry-After: 0", "429 Slow\r\nRetry-After: 0"}) {
    RawServer server([&](const auto& c) { c.number == 0 ? c.Answer(trouble, "why") : c.Answer("200 OK", c.Scores()); });
    EXPECT_THAT(ScoreAll(Judge(server.url()), 1).values(), ElementsAre(0.5F)) << trouble;
    EXPECT_EQ(server.connections(), 2);
  }
}

TEST(HttpSource, NeverRepeatsWhatTheServerRefuses) {
  RawServer server([](const auto& c) { c.Answer("404 Not Found", "no \x1b such page"); });
  const Result result = ScoreAll(Judge(server.url()), 2);
  EXPECT_THAT(result.error(1), Fails(absl::StatusCode::kFailedPrecondition, {"127.0.0.1", "/score: ", "404", "no "}));
  EXPECT_THAT(result.error(1).message(), Not(HasSubstr("secret")));
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpSource, RefusesRedirectsAndNamesThePlace) {
  RawServer server([](const auto& c) { c.Answer("302 Found\r\nLocation: http://example.org/x?key=secret", ""); });
  EXPECT_THAT(ScoreAll(Judge(server.url()), 1).error(0),
              Fails(absl::StatusCode::kFailedPrecondition, {"redirect 302", "http://example.org/x"}));
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpSource, FindsTheSampleThatIsToBlame) {
  RawServer server([](const auto& c) {
    const auto samples = c.Samples();
    const bool bad = std::find(samples.begin(), samples.end(), 2U) != samples.end();
    bad ? c.Answer("500 Oops", "it broke") : c.Answer("200 OK", c.Scores());
  });
  const Result result = ScoreAll(Judge(server.url()), 4);
  EXPECT_THAT(result.values(), ElementsAre(0.5F, 0.5F, -1.0F, 0.5F));
  EXPECT_THAT(result.error(2), Fails(absl::StatusCode::kUnavailable, {"2 tries", "500", "it broke"}));
  EXPECT_EQ(server.connections(), 6);  // all, 0, 1, 2 twice, 3
}

TEST(HttpSource, AsksNoSampleAgainForAnAnswerThatIsNoSuch) {
  // Each sample alone would have got its score.
  const std::map<std::string, std::vector<std::string>> answers = {
      {R"({"scores":[{"sample":1,"score":0.25}]})", {"1 of 3 samples", "also for 0"}},
      {R"({"scores":[]})", {"0 of 3 samples", "also for 0"}},
      {R"({"scores":[{"sample":0,"score":1},{"sample":1,"score":1},{"sample":3,"score":1}]})", {"sample 3"}},
      {R"({"scores":[{"sample":-1,"score":1}]})", {"sample -1"}},
      {R"({"scores":[1, 1, 1]})", {"no sample"}},
      {R"({"score":1})", {"\"scores\""}}};
  for (const auto& [answer, names] : answers) {
    RawServer server([&](const auto& c) { c.Answer("200 OK", c.number == 0 ? answer : c.Scores()); });
    const Result result = ScoreAll(Judge(server.url()), 3);
    for (size_t i = 0; i < 3; ++i) EXPECT_THAT(result.error(i), Fails(absl::StatusCode::kInvalidArgument, names));
    EXPECT_EQ(server.connections(), 1) << answer;
  }
}

TEST(HttpSource, AsksASampleAgainOnlyIfTheServerSaysThatItFailed) {
  const std::map<std::string, std::pair<float, int>> scores = {{R"("error":"busy")", {0.5F, 2}},
                                                               {R"("error":"busy","retry":true)", {0.5F, 2}},
                                                               {R"("error":"no unit","retry":false)", {-1.0F, 1}},
                                                               {R"("score":"0.5")", {-1.0F, 1}},
                                                               {R"("score":1e300)", {-1.0F, 1}},
                                                               {R"("parts":{})", {-1.0F, 1}}};
  for (const auto& [score, expected] : scores) {
    RawServer server([&](const auto& c) {
      const std::string bad = absl::StrCat(R"({"scores":[{"sample":0,"score":0.25},{"sample":1,)", score, "}]}");
      c.Answer("200 OK", c.number == 0 ? bad : c.Scores());
    });
    EXPECT_THAT(ScoreAll(Judge(server.url()), 2).values(), ElementsAre(0.25F, expected.first)) << score;
    EXPECT_EQ(server.connections(), expected.second) << score;
  }
}

TEST(HttpSource, SaysWhatIsWrongWithAnAnswer) {
  const std::string good = R"({"scores":[{"sample":0,"score":1}]})";
  EXPECT_THAT(ErrorFor(Ok("<html>")), Fails(absl::StatusCode::kInvalidArgument, {"<html>", "not JSON"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[{"sample":0,"score":NaN}]})")),
              Fails(absl::StatusCode::kInvalidArgument, {"not JSON"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[{"sample":0,"score":1e300}]})")),
              Fails(absl::StatusCode::kInvalidArgument, {"finite"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[]})")), Fails(absl::StatusCode::kInvalidArgument, {"0 of 1 samples"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[{"sample":0,"score":1},{"sample":0,"score":1}]})")),
              Fails(absl::StatusCode::kInvalidArgument, {"sample 0", "once"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[{"sample":7,"score":1}]})")),
              Fails(absl::StatusCode::kInvalidArgument, {"sample 7"}));
  EXPECT_THAT(ErrorFor(Ok(R"({"scores":[{"sample":0,"error":"no judge"}]})")),
              Fails(absl::StatusCode::kUnknown, {"no judge"}));
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + good),
              Fails(absl::StatusCode::kInvalidArgument, {"compressed"}));
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + good),
              Fails(absl::StatusCode::kUnavailable, {"closed"}));
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + good),
              Fails(absl::StatusCode::kInvalidArgument, {"not JSON"}));
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
              Fails(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ErrorFor("SSH-2.0\r\n\r\n"), Fails(absl::StatusCode::kUnavailable, {"no HTTP"}));
  EXPECT_THAT(ErrorFor(""), Fails(absl::StatusCode::kUnavailable));
}

TEST(HttpSource, BoundsWhatItReads) {
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 " + std::string(1 << 20, 'x')),
              Fails(absl::StatusCode::kResourceExhausted, {"4096"}));
  std::string fields;
  for (int i = 0; i < 5000; ++i) fields += absl::StrCat("X-", i, ": y\r\n");
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\n" + fields), Fails(absl::StatusCode::kResourceExhausted, {"16384"}));
  EXPECT_THAT(ErrorFor("HTTP/1.1 200 OK\r\n\r\n" + std::string(17 << 20, ' ')),
              Fails(absl::StatusCode::kResourceExhausted, {"16 MiB"}));
}

TEST(HttpSource, GivesUpOnServersThatDripInTime) {
  for (const std::string begin : {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n"}) {
    RawServer server([&](const auto& c) {
      c.Say(begin);
      c.Drip(begin.empty() ? "HTTP/1.1 " : "X-A: b\r\n");
    });
    HttpOptions options = Judge(server.url());
    options.retries = 0;
    absl::Status error;
    options.timeout = absl::Milliseconds(300);
    // A loaded machine may not have sent the request when the time is over.
    for (; options.timeout < kPatience; options.timeout *= 4) {
      error = ScoreAll(options, 1).error(0);
      if (absl::StrContains(error.message(), "the answer")) break;
    }
    EXPECT_THAT(error, Fails(absl::StatusCode::kDeadlineExceeded, {"the answer"}));
  }
}

TEST(HttpSource, EndsSoonWhenItIsToStop) {
  std::atomic<bool> stop = false;
  RawServer server([&](const auto& c) {
    stop = true;
    c.Drip(" ");
  });
  const HttpOptions options = Judge(server.url());
  const Result result = ScoreAll(options, 3, [&] { return stop ? absl::CancelledError("enough") : absl::OkStatus(); });
  EXPECT_THAT(result.status, Fails(absl::StatusCode::kCancelled, {"enough"}));
}

TEST(HttpSource, SaysThatNobodyListens) {
  EXPECT_THAT(ScoreAll(Judge("http://127.0.0.1:1/score"), 1).error(0),
              Fails(absl::StatusCode::kUnavailable, {"127.0.0.1:1/", "2 tries", "refused"}));
}

TEST(HttpSource, SendsTheTokenAndNeverShowsIt) {
  ASSERT_EQ(setenv("TDOCK_HTTP_TEST_TOKEN", "hush-hush", 1), 0);
  std::string request;
  RawServer server([&](const auto& c) {
    request = c.request;
    c.Answer("403 Forbidden", "not with hush-hush");
  });
  HttpOptions options = Judge(server.url());
  options.token_env = "TDOCK_HTTP_TEST_TOKEN";
  const absl::Status error = ScoreAll(options, 1).error(0);
  EXPECT_THAT(request, HasSubstr("Authorization: Bearer hush-hush\r\n"));
  EXPECT_THAT(error.message(), testing::AllOf(HasSubstr("403"), Not(HasSubstr("hush"))));
  options.token_env = "TDOCK_HTTP_TEST_NONE";
  EXPECT_THAT(MakeHttpSource(options).status(), Fails(absl::StatusCode::kInvalidArgument, {"TDOCK_HTTP_TEST_NONE"}));
}

TEST(HttpSource, TrustsOnlyCertificatesOfItsAuthority) {
  const std::string folder = testing::TempDir() + absl::StrCat("http_source_", getpid());
  std::filesystem::create_directories(folder);
  const std::string key = folder + "/key.pem", certificate = folder + "/cert.pem";
  const std::string command = absl::StrCat(
      "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext "
      "subjectAltName=IP:127.0.0.1 -keyout ",
      key, " -out ", certificate, " 2>/dev/null");
  ASSERT_EQ(std::system(command.c_str()), 0);
  httplib::SSLServer server(certificate.c_str(), key.c_str());
  server.Post("/score", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"scores":[{"sample":0,"score":0.75}]})", "application/json");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread serving([&] { server.listen_after_bind(); });
  HttpOptions options = Judge(absl::StrCat("https://127.0.0.1:", port, "/score"));
  EXPECT_THAT(ScoreAll(options, 1).error(0), Fails(absl::StatusCode::kFailedPrecondition, {"certificate", "self"}));
  options.ca_file = certificate;
  EXPECT_THAT(ScoreAll(options, 1).values(), ElementsAre(0.75F));
  options.url = absl::StrCat("https://localhost:", port, "/score");  // another name than that of the certificate
  EXPECT_THAT(ScoreAll(options, 1).error(0), Fails(absl::StatusCode::kFailedPrecondition, {"certificate"}));
  options.verify = false;
  EXPECT_THAT(ScoreAll(options, 1).values(), ElementsAre(0.75F));
  options.verify = true;
  options.ca_file = folder + "/none.pem";
  EXPECT_THAT(MakeHttpSource(options).status(), Fails(absl::StatusCode::kInvalidArgument, {"none.pem"}));
  server.stop();
  serving.join();
  std::filesystem::remove_all(folder);
}

TEST(HttpUrl, KnowsWhatIsNone) {
  for (const char* bad : {"", "ftp://a/b", "http://", "http://:80/", "http://a:b/", "http://a:99999/", "http://a b/",
                          "http://a/#x", "http://[::1/", "http://a/\r\nX: y"}) {
    EXPECT_THAT(ParseHttpUrl(bad).status(), Fails(absl::StatusCode::kInvalidArgument)) << bad;
  }
  const absl::Status secret = ParseHttpUrl("https://me:pass@host/x").status();
  EXPECT_THAT(secret, Fails(absl::StatusCode::kInvalidArgument, {"reward.url_token_env"}));
  EXPECT_THAT(secret.message(), Not(HasSubstr("pass@")));
  const auto url = ParseHttpUrl("https://[::1]:8443?x=1");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->host_field, "[::1]:8443");
  EXPECT_EQ(url->target, "/?x=1");
  EXPECT_EQ(url->shown, "https://[::1]:8443/");
}

}  // namespace
}  // namespace tdock::reward
