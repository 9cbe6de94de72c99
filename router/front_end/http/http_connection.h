// One client's TCP connection. It reads requests one after another, gives each to the handler, and
// writes the reply before it looks at the next request.
//
// clang-format off
//   idle --bytes--> reading --request--> answering --reply written--> idle ...     (kept alive)
//                      `--fault, timeout--> reply, lingering --> closed
// clang-format on
//
// Bounds: requests that the client sends ahead wait in a buffer of kAheadBytesMax; when it is full
// the connection reads nothing. A client that does not read its reply loses the connection after
// `write_timeout`; one that reads slowly keeps it. What a connection holds counts in its server's
// BufferBudget: without room there a request is refused, an unread answer ends its connection, and
// requests sent ahead are dropped, with the connection once it has its answer. While that budget is
// scarce, a client that holds a part of it must read its answer within a minute.
// Every state has a deadline. If the client ends its stream while its answer is
// being made, the connection treats it as gone.
// Thread safety: every method runs within the lock of its IoStrand, except Post and RunOrPost,
// which any thread may call.
// Owner: shared by the operations that are pending on the socket and the answer being written.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "router/front_end/http/buffer_budget.h"
#include "router/front_end/http/client_socket.h"
#include "router/front_end/http/http_exchange.h"
#include "router/front_end/http/io_strand.h"
#include "router/front_end/http/request_reader.h"

namespace tandem::router {

struct ConnectionLimits {
  ReaderLimits reader;
  absl::Duration idle_timeout = absl::Seconds(75);     // between requests
  absl::Duration request_timeout = absl::Seconds(30);  // from a request's first byte to its last
  absl::Duration write_timeout = absl::Seconds(60);    // the client reads less than kProgressBytes
  // While the BufferBudget is scarce, a client that holds a part of it must take kProgressBytes and
  // the kScarceParts-th part of what is being sent to it in each of these times. It is not shorter
  // because a kernel tells of room for more only once a third of its own buffer is free.
  absl::Duration scarce_pace = absl::Seconds(5);
};

class HttpConnection final : public HttpExchange,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Hooks {
    std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)> handle;
    // Looks at a request whose body has not come yet. A reply refuses the request: it is sent, the
    // body is not kept, and the connection closes.
    std::function<std::optional<HttpReply>(const HttpRequest& head)> refuse;
    // Makes the reply to a request that could not be read. `head`: what is known of it; nullopt if
    // not even its path is.
    std::function<HttpReply(int status, const std::string& message,
                            const std::optional<HttpRequest>& head)>
        fault;
    std::function<void(HttpConnection*)> closed;
  };

  // A client that reads this much within `write_timeout` goes on.
  static constexpr size_t kProgressBytes = 4096;
  // In so many times `scarce_pace` a client must be able to read its answer.
  static constexpr size_t kScarceParts = 12;

  // `strand`, `limits`, `budget` and `hooks` outlive the connection. `strand` is that of its I/O
  // thread.
  HttpConnection(IoStrand& strand, ClientSocket socket, const ConnectionLimits& limits,
                 BufferBudget& budget, const Hooks& hooks);

  void Start();
  // The connection closes after its next reply, or the one that is being made.
  void EndKeepAlive() { keep_alive_ = false; }
  // The same; it closes now if no request has come.
  void CloseWhenIdle();
  void Close();

  // ---- HttpExchange
  void Post(absl::AnyInvocable<void()> work) override { strand_.Post(std::move(work)); }
  void RunOrPost(absl::AnyInvocable<void()> work) override { strand_.RunOrPost(std::move(work)); }
  void Wait(std::shared_ptr<PendingAnswer> answer) override;
  void Reply(HttpReply reply) override;
  void BeginStream(const HttpReply& reply) override;
  void WriteStream(absl::string_view bytes) override;
  void EndStream(bool complete, absl::string_view bytes) override;
  bool writing() const override { return writing_; }

 private:
  // Bytes of later requests that are read while one is answered.
  static constexpr size_t kAheadBytesMax = 65536;
  // What a refused client may still send, and how long, before the connection is reset.
  static constexpr size_t kLingerBytesMax = size_t{64} << 20;
  static constexpr absl::Duration kLingerTime = absl::Seconds(2);

  enum class State { kReading, kAnswering, kLingering, kClosed };

  void ReadMore();
  void OnReadable();
  void OnBytes(absl::string_view bytes);
  void Advance();
  void HandleOne();
  // What is known of the request that is being read or was faulty, as RequestReader::Head.
  std::optional<HttpRequest> KnownHead() const;
  void Refuse(HttpReply reply);
  void Write(std::string bytes);
  void AddToStream(absl::string_view bytes);
  // Starts to send out_, unless the connection is sending already.
  void Flush();
  // Sends more of sending_. True when all of it is sent; else `error` says why not.
  bool Send(boost::system::error_code& error);
  void AwaitWritable();
  void OnWritten();
  // Counts what the connection holds now; false: there is no room for it.
  bool CountHeld();
  // There is no room for what the client sent ahead: the connection ends after its answer.
  void DropAhead();
  // Looks at how fast the client reads after `scarce_pace`, or at the write timeout.
  void WatchPace();
  bool IsTooSlow() const;
  void ReplyDone();
  void SetDeadline(absl::Duration from_now);
  void ArmTimer();
  void OnDeadline();

  IoStrand& strand_;
  ClientSocket socket_;
  boost::asio::steady_timer timer_;
  const ConnectionLimits& limits_;
  const Hooks& hooks_;
  RequestReader reader_;
  State state_ = State::kReading;
  std::shared_ptr<PendingAnswer> pending_;  // shared with the sessions that feed it
  std::string out_, sending_;               // to be written next; being written
  size_t sent_ = 0;                         // bytes of sending_
  size_t sent_in_time_ = 0;                 // those when the write deadline was set
  size_t sent_at_pace_ = 0;                 // those when the pace was watched last
  absl::Time write_deadline_ = absl::InfiniteFuture();
  BufferShare share_;  // of the server's budget
  bool reading_ = false, writing_ = false;
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;
  bool reply_ended_ = false;    // out_ and sending_ hold the rest of the reply
  bool linger_ = false;         // after the reply, the client may still be sending
  bool ahead_dropped_ = false;  // nothing more is read before the answer is out
  bool advancing_ = false;      // HandleOne is on the stack
  bool timed_request_ = false;  // the deadline is that of the request being read
  size_t linger_bytes_ = 0;
  std::string source_;  // of the client, set at Start
  absl::Time arrived_;  // when this machine received the last bytes read
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Time armed_ = absl::InfiniteFuture();
};

}  // namespace tandem::router
