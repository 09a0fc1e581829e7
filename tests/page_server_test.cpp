// What `snug report --serve` answers, to browsers and to whoever else connects.
#include "report/page_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "expect_error.h"

namespace snug {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RequestHead head_of_status(int status) { return {.status = status}; }

TEST(RequestHead, IsMethodPathAndHost) {
  const std::string get = "GET /a/b?c=d HTTP/1.1\r\nAccept: */*\r\nhOST: \t 127.0.0.1:80 \r\nEmpty:\r\n\r\n";
  const RequestHead expected{.status = 200, .method = "GET", .path = "/a/b", .host = "127.0.0.1:80"};
  EXPECT_EQ(parse_request_head(get), expected);
  EXPECT_EQ(parse_request_head(get + "more"), expected);
  EXPECT_EQ(parse_request_head("GET / HTTP/1.0\r\n\r\n").host, "");
  for (size_t size = 0; size < get.size(); size++)
    EXPECT_EQ(parse_request_head(get.substr(0, size)), head_of_status(0)) << size;
}

TEST(RequestHead, OfHostileBytesIsRefused) {
  using namespace std::string_literals;
  for (const std::string& head :
       {""s, "GET"s, "GET /"s, "GET  HTTP/1.1"s, " / HTTP/1.1"s, "G(T / HTTP/1.1"s, "GET /\x80 HTTP/1.1"s,
        "GET / x HTTP/1.1"s, "GET / HTTP/1.1\r\nno colon"s, "GET / HTTP/1.1\r\n: x"s, "GET / HTTP/1.1\r\n folded: x"s,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a"s, "GET / HTTP/1.1\r\nHost:"s, "GET / HTTP/1.1\r\nHost: a b"s,
        "GET / HTTP/1.1\r\nA: b\nc"s, "GET / HTTP/1.1\r\nA: \0"s})
    EXPECT_EQ(parse_request_head(head + "\r\n\r\n"), head_of_status(400)) << head;
  EXPECT_EQ(parse_request_head("GET / HTTP/2\r\n\r\n"), head_of_status(505));
  const std::string begin = "GET / HTTP/1.1\r\nA: ";
  const std::string longest = begin + std::string(kMaxRequestHead - begin.size() - 4, 'a') + "\r\n\r\n";
  EXPECT_EQ(parse_request_head(longest).status, 200);
  EXPECT_EQ(parse_request_head("G" + longest), head_of_status(431));
}

TEST(Answer, IsThePageForThisMachineAlone) {
  bool goes_on = true;
  const auto page = [&] { return ServedPage{"<p>page</p>", goes_on}; };
  RequestHead head{.status = 200, .method = "GET", .path = "/", .host = "127.0.0.1:4711"};
  EXPECT_THAT(answer(head, 4711, page), StartsWith("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n"));
  EXPECT_THAT(answer(head, 4711, page), EndsWith("Refresh: 5\r\n\r\n<p>page</p>"));
  goes_on = false;
  EXPECT_THAT(answer(head, 4711, page), Not(HasSubstr("Refresh")));
  head.host = "localhost:4711";
  EXPECT_THAT(answer(head, 4711, page), StartsWith("HTTP/1.1 200 "));
  for (const char* host : {"", "127.0.0.1", "evil.example:4711", "127.0.0.1:4712", "127.0.0.1:47110"}) {
    head.host = host;
    EXPECT_THAT(answer(head, 4711, page), StartsWith("HTTP/1.1 421 ")) << host;
  }
  head.host = "127.0.0.1:4711";
  head.path = "/metrics.jsonl";
  EXPECT_THAT(answer(head, 4711, page), StartsWith("HTTP/1.1 404 "));
  head.path = "/";
  head.method = "POST";
  EXPECT_THAT(answer(head, 4711, page), HasSubstr("\r\nAllow: GET\r\n"));
  for (const int status : {400, 431, 505})
    EXPECT_THAT(answer({.status = status}, 4711, page), StartsWith("HTTP/1.1 " + std::to_string(status)));
  head.method = "GET";
  const std::string failed = answer(head, 4711, []() -> ServedPage { user_error("run: found no run"); });
  EXPECT_THAT(failed, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(failed, EndsWith("Refresh: 5\r\n\r\nrun: found no run\n"));
}

// A server on a thread of its own.
class Served : public ::testing::Test {
 protected:
  ~Served() override {
    ends_ = true;
    thread_.join();
  }
  int connect() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  static void send(int socket, std::string_view text) {
    EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Returns all that comes until the other side closes.
  static std::string rest(int socket) {
    std::string text;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(socket, bytes, sizeof bytes, 0)) > 0;)
      text.append(bytes, static_cast<size_t>(count));
    ::close(socket);
    return text;
  }
  std::string get() const { return fmt::format("GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", server_.port()); }

  const std::string page_ = std::string(900'000, 'x');  // more than a socket takes at once
  PageServer server_{0};
  std::atomic<bool> ends_ = false;
  std::thread thread_{[this] {
    server_.serve([this] { return ServedPage{page_, true}; }, [this] { return ends_.load(); });
  }};
};

TEST_F(Served, ConnectionsThatSayNothingHoldNobodyUp) {
  std::vector<int> silent;
  for (int i = 0; i < 8; i++) silent.push_back(connect());
  const int slow = connect();
  for (const char c : get()) send(slow, {&c, 1});
  EXPECT_THAT(rest(slow), EndsWith("\r\n\r\n" + page_));
  const int gone = connect();
  send(gone, get());
  ::close(gone);
  const int post = connect();
  send(post, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + std::string(5000, 'b'));
  EXPECT_THAT(rest(post), StartsWith("HTTP/1.1 421 "));
  const int noise = connect();
  send(noise, std::string(20'000, 'n'));
  EXPECT_THAT(rest(noise), StartsWith("HTTP/1.1 431 "));
  for (const int socket : silent) ::close(socket);
}

TEST_F(Served, APortThatIsTakenIsRefused) {
  const std::string port = std::to_string(server_.port());
  EXPECT_TRUE(fails_with<UserError>([&] { PageServer{server_.port()}; },
                                    "port: found " + port + ", which 127.0.0.1 does not give"));
}

}  // namespace
}  // namespace snug
