#include "core/http/framing.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/http/server.h"
#include "core/http/testing/raw_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock::http {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A request, and the status of its response.
struct Case {
  const char* what;
  std::string bytes;
  int status;
};

constexpr char kPost[] = "POST /a HTTP/1.1\r\nHost: h\r\n";
constexpr char kGet[] = "GET /a HTTP/1.1\r\nHost: h\r\n";
constexpr char kSecond[] = "GET /second HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
constexpr char kOneChunk[] = "2\r\nab\r\n0\r\n\r\n";

std::string Post(const std::string& headers, const std::string& body) {
  return absl::StrCat(kPost, headers, "\r\n\r\n", body);
}
std::string Get(const std::string& headers) { return absl::StrCat(kGet, headers, "\r\n\r\n"); }
std::string WithTarget(const std::string& target, const std::string& host = "h") {
  return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n");
}
std::string HeaderLines(size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) absl::StrAppend(&all, i > 0 ? "\r\n" : "", "X", i, ": y");
  return all;
}

std::vector<Case> TransferCases() {
  const std::string ab(kOneChunk);
  return {
      {"chunks", Post("Transfer-Encoding: chunked", ab), 200},
      {"chunks in capitals", Post("transfer-encoding: CHUNKED", ab), 200},
      {"an unknown coding", Post("Transfer-Encoding: xchunked", ""), 400},
      {"a coding without chunks", Post("Transfer-Encoding: gzip", ""), 400},
      {"no coding by its name", Post("Transfer-Encoding: identity", ""), 400},
      {"no coding at all", Post("Transfer-Encoding:", ""), 400},
      {"a coding beside chunks", Post("Transfer-Encoding: gzip, chunked", ab), 501},
      {"a coding beside chunks, in two headers", Post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", ab),
       501},
      {"chunks that are not last", Post("Transfer-Encoding: chunked, gzip", ab), 400},
      {"chunks twice", Post("Transfer-Encoding: chunked, chunked", ab), 400},
      {"chunks in two headers", Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", ab), 400},
      {"chunks and nothing", Post("Transfer-Encoding: chunked,", ab), 400},
      {"chunks with a parameter", Post("Transfer-Encoding: chunked;a=b", ab), 400},
      {"two words", Post("Transfer-Encoding: chunked x", ab), 400},
      {"chunks with a length", Post("Transfer-Encoding: chunked\r\nContent-Length: 3", ab), 400},
      {"a length with chunks", Post("Content-Length: 3\r\nTransfer-Encoding: chunked", ab), 400},
      {"a length with an unknown coding", Post("Transfer-Encoding: xchunked\r\nContent-Length: 2", "ab"), 400},
      {"a space before the colon", Post("Transfer-Encoding : chunked", ab), 400},
      {"a vertical tab", Post("Transfer-Encoding: \vchunked", ab), 400},
      {"a folded line", Post("Transfer-Encoding:\r\n chunked", ab), 400},
      {"HTTP/1.0", "POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + ab, 400},
  };
}

std::vector<Case> LengthCases() {
  return {
      {"a length", Post("Content-Length: 2", "ab"), 200},
      {"spaces around it", Post("Content-Length: \t 2 \t", "ab"), 200},
      {"zeros before it", Post("Content-Length: 0002", "ab"), 200},
      {"HTTP/1.0", "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab", 200},
      {"the same length twice", Post("Content-Length: 2\r\nContent-Length: 2", "ab"), 400},
      {"two lengths", Post("Content-Length: 2\r\nContent-Length: 3", "ab"), 400},
      {"a list of the same length", Post("Content-Length: 2, 2", "ab"), 400},
      {"a length and a comma", Post("Content-Length: 2,", "ab"), 400},
      {"a plus", Post("Content-Length: +2", "ab"), 400},
      {"a minus", Post("Content-Length: -2", "ab"), 400},
      {"a space inside", Post("Content-Length: 1 2", "ab"), 400},
      {"hexadecimal digits", Post("Content-Length: 0x2", "ab"), 400},
      {"a fraction", Post("Content-Length: 2.0", "ab"), 400},
      {"nothing", Post("Content-Length:", ""), 400},
      {"more than 64 bits", Post("Content-Length: 18446744073709551618", "ab"), 400},
      {"too much", Post("Content-Length: 1001", ""), 413},
      {"a space before the colon", Post("Content-Length : 2", "ab"), 400},
      {"a folded line", Post("Content-Length:\r\n 2", "ab"), 400},
      {"a bare line end in a value", Post("X: y\nContent-Length: 2", "ab"), 400},
  };
}

std::vector<Case> ChunkCases() {
  const auto chunked = [](const std::string& body) { return Post("Transfer-Encoding: chunked", body); };
  return {
      {"an extension", chunked("2;a=b;c=\"d e\"\r\nab\r\n0;x\r\n\r\n"), 200},
      {"a trailer", chunked("2\r\nab\r\n0\r\nX-Sum: 1\r\n\r\n"), 200},
      {"zeros before a size", chunked("0002\r\nab\r\n00\r\n\r\n"), 200},
      {"a bare line end in an extension", chunked("2;a=\"\n\"\r\nab\r\n0\r\n\r\n"), 400},
      {"a bare line end for a size", chunked("2\nab\r\n0\r\n\r\n"), 400},
      {"no size", chunked("\r\nab\r\n0\r\n\r\n"), 400},
      {"a size with a sign", chunked("+2\r\nab\r\n0\r\n\r\n"), 400},
      {"a size with 0x", chunked("0x2\r\nab\r\n0\r\n\r\n"), 400},
      {"a space behind a size", chunked("2 \r\nab\r\n0\r\n\r\n"), 400},
      {"a size of more than 64 bits", chunked("10000000000000002\r\nab\r\n0\r\n\r\n"), 400},
      {"a size above the limit", chunked("3e9\r\n"), 413},
      {"a chunk that is longer than its size", chunked("1\r\nab\r\n0\r\n\r\n"), 400},
      {"long extensions", chunked(absl::StrCat("2;a=", std::string(5000, 'x'), "\r\nab\r\n0\r\n\r\n")), 400},
      {"a line without an end", chunked(absl::StrCat("2;a=", std::string(120'000, 'x'))), 400},
      {"a length in a trailer", chunked("2\r\nab\r\n0\r\nContent-Length: 2\r\n\r\n"), 400},
      {"a folded trailer", chunked("2\r\nab\r\n0\r\nX: y\r\n z\r\n\r\n"), 400},
  };
}

std::vector<Case> HostCases() {
  const auto hosts = [](const std::string& headers) { return absl::StrCat("GET /a HTTP/1.1\r\n", headers, "\r\n"); };
  return {
      {"a host", hosts("Host: example.com:8000\r\n"), 200},
      {"a host with an underscore", hosts("Host: my_service\r\n"), 200},
      {"an address", hosts("Host: [::1]:8000\r\n"), 200},
      {"an empty host", hosts("Host:\r\n"), 200},
      {"no host in HTTP/1.0", "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200},
      {"no host", hosts(""), 400},
      {"two hosts", hosts("Host: h\r\nHost: h\r\n"), 400},
      {"two hosts in HTTP/1.0", "GET /a HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", 400},
      {"a list of hosts", hosts("Host: h, i\r\n"), 400},
      {"a user", hosts("Host: user@h\r\n"), 400},
      {"a path", hosts("Host: h/x\r\n"), 400},
      {"a port of letters", hosts("Host: h:http\r\n"), 400},
      {"a long port", hosts("Host: h:800000\r\n"), 400},
      {"an open bracket", hosts("Host: [::1\r\n"), 400},
      {"other bytes", hosts("Host: h\xc3\xa9\r\n"), 400},
      {"the host in the target", WithTarget("http://h/a"), 200},
      {"the host in the target, in capitals", WithTarget("HTTP://H/a", "h"), 200},
      {"another host in the target", WithTarget("http://other/a"), 400},
      {"another port in the target", WithTarget("http://h:81/a", "h:80"), 400},
      {"a user in the target", WithTarget("http://user@h/a"), 400},
      {"no host in the target", WithTarget("http:///a"), 400},
      {"another scheme", WithTarget("ftp://h/a"), 400},
      {"no path", WithTarget("a"), 400},
      {"a host as the target", WithTarget("h:80"), 400},
      {"a fragment", WithTarget("/a#b"), 400},
      {"a star for GET", WithTarget("*"), 400},
      {"a star for OPTIONS", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 200},
      {"a tunnel", "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", 501},
  };
}

std::vector<Case> HeadCases() {
  return {
      {"no coding of the body", Get("Content-Encoding: identity"), 200},
      {"a compressed body", Post("Content-Encoding: gzip\r\nContent-Length: 2", "ab"), 415},
      {"a body compressed twice", Post("Content-Encoding: identity, br\r\nContent-Length: 2", "ab"), 415},
      {"an unknown expectation", Post("Expect: miracles\r\nContent-Length: 2", "ab"), 417},
      {"two expectations", Post("Expect: 100-continue, miracles\r\nContent-Length: 2", "ab"), 417},
      {"an old client that expects",
       "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n"
       "Content-Length: 2\r\n\r\nab",
       200},
      {"an empty line first", absl::StrCat("\r\n", Get("X: y")), 200},
      {"two empty lines first", absl::StrCat("\r\n\r\n", Get("X: y")), 400},
      {"a bare line end first", absl::StrCat("\n", Get("X: y")), 400},
      {"many headers", Get(HeaderLines(kMaxHeaders - 1)), 200},
      {"too many headers", Get(HeaderLines(kMaxHeaders)), 431},
      {"other bytes in a value", Get("X: \xc3\xa9\t\"(),/:;<=>?@[]{}"), 200},
      {"a folded value", Get("X: y\r\n z"), 400},
      {"a folded empty value", Get("X:\r\n\t"), 400},
      {"a bare carriage return in a value", Get("X: y\rz"), 400},
      {"a bare line feed in a value", Get("X: y\nz"), 400},
      {"a zero in a value", Get(std::string("X: y\0z", 6)), 400},
      {"no name", Get(": y"), 400},
      {"a space in a name", Get("X Y: z"), 400},
      {"no colon", Get("X"), 400},
      {"a space before the first name", Get(" X: y"), 400},
      {"another version", "GET /a HTTP/2.0\r\nHost: h\r\n\r\n", 505},
      {"a version that is none", "GET /a HTTP/1.x\r\nHost: h\r\n\r\n", 505},
      {"another protocol", "GET /a SMTP/1.1\r\nHost: h\r\n\r\n", 505},
      {"no version", "GET /a\r\nHost: h\r\n\r\n", 400},
      {"two spaces", "GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"a space behind the version", "GET /a HTTP/1.1 \r\nHost: h\r\n\r\n", 505},
      {"a zero in the target", std::string("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 28), 400},
  };
}

class RequestFraming : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerLimits limits{.max_body_bytes = 1000};
    limits.request_timeout = limits.idle_timeout = limits.write_timeout = kNever;
    server_ = *Server::Start({.limits = limits}, [this](const std::shared_ptr<Exchange>& exchange) {
      ++handled_;
      const Request& request = exchange->request();
      exchange->Send({.body = absl::StrCat(request.path, " ", request.body, request.Header("x-sum"))});
    });
  }

  // A request that is right is answered, and so is the one behind it. Another is refused, and nothing behind it is
  // read.
  void Check(const std::vector<Case>& cases) {
    for (const Case& test : cases) {
      SCOPED_TRACE(test.what);
      const int before = handled_;
      RawClient client(server_->port());
      client.Send(test.bytes + kSecond);
      const std::string first = client.ReadResponse(), rest = client.ReadAll();
      EXPECT_THAT(first, StartsWith(absl::StrCat("HTTP/1.1 ", test.status, " ")));
      if (test.status == 200) {
        EXPECT_THAT(first, HasSubstr("\r\nConnection: keep-alive\r\n"));
        EXPECT_THAT(rest, StartsWith("HTTP/1.1 200 "));
        EXPECT_THAT(rest, EndsWith("\r\n\r\n/second "));
      } else {
        EXPECT_THAT(first, HasSubstr("\r\nConnection: close\r\n"));
        EXPECT_EQ(rest, "");
      }
      EXPECT_EQ(handled_ - before, test.status == 200 ? 2 : 0);
    }
  }

  std::atomic<int> handled_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(RequestFraming, KnowsOneTransferEncoding) { Check(TransferCases()); }
TEST_F(RequestFraming, KnowsOneLength) { Check(LengthCases()); }
TEST_F(RequestFraming, KnowsOneReadingOfChunks) { Check(ChunkCases()); }
TEST_F(RequestFraming, KnowsOneHost) { Check(HostCases()); }
TEST_F(RequestFraming, RefusesWhatItDoesNotDoAndHeadsThatAreWrong) { Check(HeadCases()); }

TEST_F(RequestFraming, TrailersAreNoHeaders) {
  RawClient client(server_->port());
  client.Send(Post("Transfer-Encoding: chunked", "2\r\nab\r\n0\r\nX-Sum: 1\r\nHost: other\r\n\r\n"));
  EXPECT_THAT(client.ReadResponse(), EndsWith("\r\n\r\n/a ab"));
}

TEST_F(RequestFraming, WaitsForTheRestOfAnEmptyLine) {
  RawClient client(server_->port());
  client.Send("\r");
  client.Send("\n");
  client.Send(Get("X: y"));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 200 "));
}

TEST(CheckFraming, NamesWhatIsWrong) {
  const auto refusal = [](Headers headers) {
    headers.emplace_back("host", "h");
    return CheckFraming({.method = "POST", .target = "/", .headers = std::move(headers)})
        .value_or(Refusal{.status = 0});
  };
  EXPECT_EQ(refusal({}).status, 0);
  EXPECT_THAT(refusal({{"host", "i"}}).message, Mentions({"Host", "2"}));
  EXPECT_THAT(refusal({{"transfer-encoding", "br\u202e"}}).message, Mentions({"Transfer-Encoding", "\\u202e"}));
  EXPECT_THAT(refusal({{"content-length", "5, 5"}}).message, Mentions({"Content-Length", "\"5, 5\""}));
  EXPECT_THAT(refusal({{"expect", "wonders"}}).message, Mentions({"Expect", "wonders"}));
  const Refusal compressed = refusal({{"content-encoding", "zstd"}});
  EXPECT_THAT(compressed.message, Mentions({"Content-Encoding", "zstd"}));
  EXPECT_THAT(compressed.headers, ElementsAre(std::pair<std::string, std::string>("Accept-Encoding", "identity")));
}

TEST(RequestOf, HasThePathAndTheQueryOfEachFormOfTarget) {
  const auto parts = [](const std::string& target) {
    const Request request = RequestOf({.method = "GET", .target = target}, "peer");
    return absl::StrCat(request.path, " ", request.query);
  };
  EXPECT_EQ(parts("/a/b?c=d?e"), "/a/b c=d?e");
  EXPECT_EQ(parts("/"), "/ ");
  EXPECT_EQ(parts("http://h/a?b"), "/a b");
  EXPECT_EQ(parts("HTTPS://h:1"), "/ ");
  EXPECT_EQ(parts("http://h?b"), "/ b");
  EXPECT_EQ(parts("*"), "* ");
}

TEST(QueryOf, DecodesNamesAndValues) {
  const auto query = QueryOf("run=a%2Fb+c&tags=x,y&bad=%zz%4&&run=2");
  EXPECT_EQ(query.at("run"), "a/b c");
  EXPECT_EQ(query.at("tags"), "x,y");
  EXPECT_EQ(query.at("bad"), "%zz%4");
}

}  // namespace
}  // namespace tdock::http
