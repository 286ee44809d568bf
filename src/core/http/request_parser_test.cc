#include "core/http/request_parser.h"

#include <boost/asio/buffer.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace tdock::http {
namespace {

using Problem = boost::beast::http::error;

// A parser that gets its input in pieces.
class Input {
 public:
  explicit Input(size_t max_head_bytes) : parser_(max_head_bytes, 1000) {}

  boost::beast::error_code Put(absl::string_view piece) {
    boost::beast::error_code error;
    absl::StrAppend(&rest_, piece);
    rest_.erase(0, parser_.put(boost::asio::const_buffer(rest_.data(), rest_.size()), error));
    return error;
  }
  const RequestParser& parser() const { return parser_; }
  size_t rest() const { return rest_.size(); }

 private:
  RequestParser parser_;
  std::string rest_;
};

// Beast itself judges only what it has not parsed yet, which never is more than a line here.
TEST(RequestParser, BoundsAHeadThatComesLineByLine) {
  constexpr size_t kMaxHead = 8 << 10;
  Input input(kMaxHead);
  ASSERT_EQ(input.Put("GET / HTTP/1.1\r\nX"), Problem::need_more);
  // A line is parsed once the next one begins.
  const std::string line = absl::StrCat(": ", std::string(1000, 'x'), "\r\nX");
  size_t lines = 0;
  boost::beast::error_code error = Problem::need_more;
  for (; error == Problem::need_more && lines < 100; ++lines) {
    ASSERT_EQ(input.rest(), 1U);
    error = input.Put(line);
  }
  EXPECT_EQ(error, Problem::header_limit);
  EXPECT_EQ(lines, kMaxHead / 1001 + 1);
}

TEST(RequestParser, FindsFoldsWhereverTheLinesAreDivided) {
  const absl::string_view head = "GET / HTTP/1.1\r\nX: y\r\n z\r\n\r\n";
  for (size_t size = 1; size <= head.size(); ++size) {
    Input input(1000);
    boost::beast::error_code error = Problem::need_more;
    for (size_t at = 0; at < head.size() && error == Problem::need_more; at += size) {
      error = input.Put(head.substr(at, size));
    }
    EXPECT_EQ(error, Problem::bad_obs_fold) << size;
  }
}

TEST(RequestParser, KeepsTheHeadersOfTheHeadOnly) {
  Input input(1000);
  boost::beast::error_code error = input.Put("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_FALSE(error);
  for (int i = 0; i < 4 && !input.parser().is_done(); ++i)
    error = input.Put(i == 0 ? "1\r\na\r\n0\r\nHost: i\r\n\r\n" : "");
  EXPECT_FALSE(error);
  EXPECT_TRUE(input.parser().is_done());
  EXPECT_EQ(input.parser().get().body(), "a");
  EXPECT_EQ(input.parser().head().headers.size(), 2U);
}

}  // namespace
}  // namespace tdock::http
