#include "report/page_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace snug {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostConnections = 16;
constexpr std::chrono::seconds kPatience{10};
constexpr int kRefreshSeconds = 5;

std::string response(std::string_view status, std::string_view headers, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Connection: close\r\n{}\r\n{}",
      status, body.size(), headers, body);
}

std::string refusal(std::string_view status, std::string_view headers = "") {
  return response(status, fmt::format("Content-Type: text/plain; charset=utf-8\r\n{}", headers),
                  fmt::format("{}\n", status));
}

// One request, and its answer.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  Connection(Connection&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        begun_(other.begun_),
        received_(std::move(other.received_)),
        left_(std::move(other.left_)),
        answered_(other.answered_) {}
  Connection& operator=(Connection&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(begun_, other.begun_);
    std::swap(received_, other.received_);
    std::swap(left_, other.left_);
    std::swap(answered_, other.answered_);
    return *this;
  }
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }

  pollfd waits_for() const { return {socket_, static_cast<short>(left_.empty() ? POLLIN : POLLOUT), 0}; }
  bool is_late() const { return Clock::now() - begun_ > kPatience; }

  // Goes on with what the socket is ready for. Returns whether it is over.
  bool go_on(const std::function<std::string(const RequestHead&)>& answer) {
    if (!left_.empty()) return !send();
    std::array<char, 4096> bytes{};
    const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
    if (count < 0) return !is_passing(errno);
    if (count == 0) return true;
    if (answered_) return false;  // what it sends besides is dropped, as a reset might overtake the answer
    received_.append(bytes.data(), static_cast<size_t>(count));
    const RequestHead head = parse_request_head(received_);
    if (head.status == 0) return false;
    left_ = answer(head);
    answered_ = true;
    return !send();
  }

 private:
  static bool is_passing(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

  // Returns whether the connection still lives.
  bool send() {
    const ssize_t count = ::send(socket_, left_.data(), left_.size(), MSG_NOSIGNAL);
    if (count < 0) return is_passing(errno);
    left_.erase(0, static_cast<size_t>(count));
    if (left_.empty()) ::shutdown(socket_, SHUT_WR);
    return true;
  }

  int socket_;
  Clock::time_point begun_ = Clock::now();
  std::string received_, left_;  // left_: of the answer
  bool answered_ = false;
};

}  // namespace

std::string answer(const RequestHead& head, uint16_t port, const std::function<ServedPage()>& page) {
  if (head.status == 431) return refusal("431 Request Header Fields Too Large");
  if (head.status == 505) return refusal("505 HTTP Version Not Supported");
  if (head.status != 200) return refusal("400 Bad Request");
  if (head.host != fmt::format("127.0.0.1:{}", port) && head.host != fmt::format("localhost:{}", port))
    return refusal("421 Misdirected Request");
  if (head.method != "GET") return refusal("405 Method Not Allowed", "Allow: GET\r\n");
  if (head.path != "/") return refusal("404 Not Found");
  const std::string again = fmt::format("Refresh: {}\r\n", kRefreshSeconds);
  try {
    const ServedPage made = page();
    return response("200 OK", "Content-Type: text/html; charset=utf-8\r\n" + (made.goes_on ? again : ""), made.html);
  } catch (const UserError& error) {
    return response("503 Service Unavailable", "Content-Type: text/plain; charset=utf-8\r\n" + again,
                    fmt::format("{}\n", error.what()));
  }
}

PageServer::PageServer(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const own = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const int yes = 1;  // a port whose last connections are still being closed may be had again
  if (socket_ >= 0 && ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      ::bind(socket_, own, size) == 0 && ::listen(socket_, SOMAXCONN) == 0 && ::getsockname(socket_, own, &size) == 0) {
    port_ = ntohs(address.sin_port);
    return;
  }
  const int error = errno;
  if (socket_ >= 0) ::close(socket_);
  user_error("port: found {}, which 127.0.0.1 does not give ({}), expected a free one, or 0 for any", port,
             std::strerror(error));
}

PageServer::~PageServer() { ::close(socket_); }

void PageServer::serve(const std::function<ServedPage()>& page, const std::function<bool()>& ends) {
  const auto answers = [&](const RequestHead& head) { return answer(head, port_, page); };
  std::vector<Connection> connections;
  while (!ends()) {
    std::vector<pollfd> ready;
    for (const Connection& connection : connections) ready.push_back(connection.waits_for());
    const bool has_room = connections.size() < kMostConnections;
    ready.push_back({has_room ? socket_ : -1, POLLIN, 0});
    if (::poll(ready.data(), ready.size(), 200) < 0 && errno != EINTR)
      device_error("127.0.0.1:{}: {}", port_, std::strerror(errno));
    for (size_t i = connections.size(); i-- > 0;) {
      const bool over = ready[i].revents != 0 && connections[i].go_on(answers);
      if (over || connections[i].is_late()) connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (ready.back().revents == 0) continue;
    if (const int socket = ::accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); socket >= 0)
      connections.emplace_back(socket);
  }
}

}  // namespace snug
