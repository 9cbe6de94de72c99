#include "router/front_end/http/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "router/front_end/failed_keys.h"

namespace tandem::router {
namespace {

using boost::system::error_code;

// Buffers larger than this are not kept between replies.
constexpr size_t kKeptBytesMax = 4096;

}  // namespace

HttpConnection::HttpConnection(IoStrand& strand, ClientSocket socket,
                               const ConnectionLimits& limits, BufferBudget& budget,
                               const Hooks& hooks)
    : strand_(strand),
      socket_(std::move(socket)),
      timer_(strand.context()),
      limits_(limits),
      hooks_(hooks),
      reader_(limits.reader),
      share_(budget) {}

void HttpConnection::Start() {
  source_ = SourceOfAddress(socket_.PeerAddress());
  SetDeadline(limits_.idle_timeout);
  ReadMore();
}

// ---- reading

void HttpConnection::ReadMore() {
  if (reading_ || state_ == State::kClosed) return;
  const bool reads_ahead = !ahead_dropped_ && reader_.buffered() < kAheadBytesMax;
  if (state_ == State::kAnswering && !reads_ahead) return;
  reading_ = true;
  socket_.AsyncWaitReadable([self = shared_from_this()](const error_code& error) {
    self->strand_.Enter([&] {
      self->reading_ = false;
      if (self->state_ == State::kClosed) return;
      if (error) return self->Close();
      self->OnReadable();
    });
  });
}

void HttpConnection::OnReadable() {
  // One buffer a thread: idle connections hold none.
  thread_local std::array<char, 65536> scratch;
  error_code error;
  absl::Duration waited;
  const size_t got = socket_.ReadSome(scratch.data(), scratch.size(), error, waited);
  if (error == boost::asio::error::would_block) return ReadMore();
  if (error || got == 0) return Close();
  arrived_ = RealClock().Now() - waited;
  OnBytes({scratch.data(), got});
}

void HttpConnection::OnBytes(absl::string_view bytes) {
  if (state_ == State::kLingering) {
    linger_bytes_ += bytes.size();
    return linger_bytes_ > kLingerBytesMax ? Close() : ReadMore();
  }
  reader_.Append(bytes);
  if (state_ == State::kReading) Advance();
  if (!CountHeld()) {
    if (state_ == State::kReading) {
      return Refuse(hooks_.fault(
          503, "this router holds as many bytes of other requests as it may: try again",
          KnownHead()));
    }
    if (state_ == State::kAnswering) DropAhead();
  }
  ReadMore();
}

void HttpConnection::DropAhead() {
  reader_.Discard();
  ahead_dropped_ = true;
  keep_alive_ = false;
  linger_ = true;
  CountHeld();
}

void HttpConnection::Advance() {
  if (advancing_) return;  // the loop below goes on
  advancing_ = true;
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  while (state_ == State::kReading && !writing_) {
    HandleOne();
    if (state_ == State::kReading) break;  // needs more bytes
    if (state_ == State::kAnswering && reply_ended_ && !writing_) ReplyDone();
  }
  advancing_ = false;
}

std::optional<HttpRequest> HttpConnection::KnownHead() const {
  std::optional<HttpRequest> head = reader_.Head();
  if (head.has_value()) head->source = source_;
  return head;
}

void HttpConnection::HandleOne() {
  RequestReader::Result next = reader_.Next();
  if (auto* request = std::get_if<HttpRequest>(&next)) {
    state_ = State::kAnswering;
    CountHeld();
    timed_request_ = false;
    chunked_ = request->chunked_allowed;
    keep_alive_ = keep_alive_ && request->keep_alive && chunked_;
    head_only_ = request->method == "HEAD";
    reply_ended_ = false;
    SetDeadline(absl::InfiniteDuration());
    request->arrived = arrived_;
    request->source = source_;
    hooks_.handle(std::move(*request), shared_from_this());
    return;
  }
  if (const auto* fault = std::get_if<RequestReader::Fault>(&next)) {
    return Refuse(hooks_.fault(fault->status, fault->message, KnownHead()));
  }
  if (hooks_.refuse != nullptr) {
    if (std::optional<HttpRequest> head = reader_.TakeHead()) {
      head->source = source_;
      if (std::optional<HttpReply> reply = hooks_.refuse(*head)) return Refuse(*std::move(reply));
    }
  }
  if (reader_.TakeContinue()) Write("HTTP/1.1 100 Continue\r\n\r\n");
  if (reader_.in_request() && !timed_request_) {
    timed_request_ = true;
    SetDeadline(limits_.request_timeout);
  }
}

void HttpConnection::Refuse(HttpReply reply) {
  state_ = State::kAnswering;
  keep_alive_ = head_only_ = false;
  linger_ = true;
  reply_ended_ = false;
  reader_.Discard();
  CountHeld();
  Reply(std::move(reply));
}

// ---- answering

void HttpConnection::Wait(std::shared_ptr<PendingAnswer> answer) {
  if (state_ != State::kAnswering) return answer->OnGone();  // closed while the answer was prepared
  pending_ = std::move(answer);
}

void HttpConnection::Reply(HttpReply reply) {
  if (state_ != State::kAnswering) return;
  pending_ = nullptr;
  reply_ended_ = true;
  std::string bytes = ReplyHead(reply, keep_alive_);
  if (!head_only_) bytes += reply.body;
  Write(std::move(bytes));
}

void HttpConnection::BeginStream(const HttpReply& reply) {
  if (state_ != State::kAnswering) return;
  if (!chunked_) keep_alive_ = false;
  out_ += StreamHead(reply, keep_alive_, chunked_);
  AddToStream(reply.body);
  Flush();
}

void HttpConnection::WriteStream(absl::string_view bytes) {
  if (state_ != State::kAnswering) return;
  AddToStream(bytes);
  Flush();
}

void HttpConnection::AddToStream(absl::string_view bytes) {
  if (bytes.empty()) return;
  // Appended piece by piece: absl::StrAppend would write zeros first.
  if (chunked_) {
    std::array<char, 16> size;
    out_.append(size.data(),
                std::to_chars(size.begin(), size.end(), bytes.size(), /*base=*/16).ptr);
    out_ += "\r\n";
  }
  out_.append(bytes.data(), bytes.size());
  if (chunked_) out_ += "\r\n";
}

void HttpConnection::EndStream(bool complete, absl::string_view bytes) {
  if (state_ != State::kAnswering) return;
  pending_ = nullptr;
  reply_ended_ = true;
  if (!complete) keep_alive_ = false;
  AddToStream(bytes);
  if (chunked_ && complete) out_ += "0\r\n\r\n";
  Flush();
}

void HttpConnection::Write(std::string bytes) {
  if (out_.empty()) {
    out_ = std::move(bytes);
  } else {
    out_ += bytes;
  }
  Flush();
}

void HttpConnection::Flush() {
  if (writing_) return;
  if (out_.empty()) {
    if (reply_ended_ && !advancing_) ReplyDone();
    return;
  }
  sending_.swap(out_);
  // Mostly the socket takes it all at once.
  error_code error;
  sent_ = 0;
  if (Send(error)) {
    sending_.clear();
    if (sending_.capacity() > kKeptBytesMax) sending_.shrink_to_fit();
    if (reply_ended_ && !advancing_) ReplyDone();
    return;
  }
  writing_ = true;  // nothing may follow the part that was sent
  if (error != boost::asio::error::would_block || !CountHeld()) {
    // The caller may be this connection's answer: it must not be told from within its own call.
    strand_.Post([self = shared_from_this()] { self->Close(); });
    return;
  }
  sent_in_time_ = sent_;
  write_deadline_ = RealClock().Now() + limits_.write_timeout;
  WatchPace();
  AwaitWritable();
}

void HttpConnection::WatchPace() {
  sent_at_pace_ = sent_;
  const absl::Duration left = write_deadline_ - RealClock().Now();
  SetDeadline(share_.charged() ? std::min(left, limits_.scarce_pace) : left);
}

bool HttpConnection::IsTooSlow() const {
  if (!share_.charged() || !share_.scarce()) return false;
  return sent_ - sent_at_pace_ < std::max(kProgressBytes, sending_.size() / kScarceParts);
}

bool HttpConnection::CountHeld() {
  return share_.Hold(static_cast<int64_t>(reader_.held() + out_.size() + sending_.size()));
}

bool HttpConnection::Send(error_code& error) {
  while (sent_ < sending_.size()) {
    sent_ += socket_.WriteSome(absl::string_view(sending_).substr(sent_), error);
    if (error) return false;
  }
  return true;
}

void HttpConnection::AwaitWritable() {
  socket_.AsyncWaitWritable([self = shared_from_this()](const error_code& wait_error) {
    self->strand_.Enter([&] {
      if (self->state_ == State::kClosed) return;
      error_code error = wait_error;
      const bool whole = !error && self->Send(error);
      if (!whole && error == boost::asio::error::would_block) {
        if (self->sent_ >= self->sent_in_time_ + kProgressBytes) {
          self->sent_in_time_ = self->sent_;
          self->write_deadline_ = RealClock().Now() + self->limits_.write_timeout;
        }
        return self->AwaitWritable();
      }
      self->writing_ = false;
      if (!whole) return self->Close();
      self->OnWritten();
    });
  });
}

void HttpConnection::OnWritten() {
  sending_.clear();
  CountHeld();
  if (!out_.empty()) return Flush();
  if (state_ == State::kReading) {  // a "100 Continue" went out
    SetDeadline(limits_.request_timeout);
    return Advance();
  }
  SetDeadline(absl::InfiniteDuration());
  if (reply_ended_) return ReplyDone();
  if (pending_ != nullptr) std::shared_ptr<PendingAnswer>(pending_)->OnWritable();
}

void HttpConnection::ReplyDone() {
  reply_ended_ = false;
  if (!keep_alive_) {
    if (!linger_ && reader_.buffered() == 0) return Close();
    // Closing with bytes unread would reset the connection and could take the reply with it.
    state_ = State::kLingering;
    socket_.ShutdownSend();
    SetDeadline(kLingerTime);
    return ReadMore();
  }
  state_ = State::kReading;
  timed_request_ = false;
  CountHeld();
  SetDeadline(limits_.idle_timeout);
  // The load shedder must not count the time that a request sent ahead waited for the last one.
  arrived_ = RealClock().Now();
  if (reader_.buffered() > 0 && !strand_.OnIoThread()) {
    // A request sent ahead is work for the I/O thread, not for the thread that ended the last one.
    strand_.Post([self = shared_from_this()] { self->Advance(); });
  } else if (!advancing_) {
    Advance();
  }
  ReadMore();
}

// ---- ending

void HttpConnection::CloseWhenIdle() {
  EndKeepAlive();
  // A request that the kernel holds is read and answered: closing would reset its connection.
  const bool idle = state_ == State::kReading && !reader_.in_request() && !socket_.HoldsBytes();
  if (idle) Close();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  state_ = State::kClosed;
  socket_.Close();
  timer_.cancel();
  if (const auto pending = std::exchange(pending_, nullptr)) pending->OnGone();
  hooks_.closed(this);
}

void HttpConnection::SetDeadline(absl::Duration from_now) {
  deadline_ =
      from_now == absl::InfiniteDuration() ? absl::InfiniteFuture() : RealClock().Now() + from_now;
  // A timer that fires early looks at the deadline again: moving it later costs nothing.
  if (deadline_ < armed_) ArmTimer();
}

void HttpConnection::ArmTimer() {
  armed_ = deadline_;
  timer_.expires_after(absl::ToChronoNanoseconds(armed_ - RealClock().Now()));
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    self->strand_.Enter([&] {
      if (error || self->state_ == State::kClosed) return;
      self->armed_ = absl::InfiniteFuture();
      self->OnDeadline();
    });
  });
}

void HttpConnection::OnDeadline() {
  if (RealClock().Now() < deadline_) {
    if (deadline_ != absl::InfiniteFuture()) ArmTimer();
    return;
  }
  if (writing_ && RealClock().Now() < write_deadline_ && !IsTooSlow()) return WatchPace();
  if (state_ == State::kReading && timed_request_ && !writing_) {
    return Refuse(hooks_.fault(408,
                               absl::StrCat("the request did not arrive within ",
                                            absl::FormatDuration(limits_.request_timeout)),
                               KnownHead()));
  }
  Close();
}

}  // namespace tandem::router
