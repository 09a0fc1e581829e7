#include "train/embed_images.h"

#include <algorithm>

#include "train/metrics.h"

namespace snug {
namespace {

// Divides images into lots, in their order, of as many as a pass has patches for.
std::vector<std::vector<NamedImage>> lots_of(const std::vector<NamedImage>& images, int64_t patches) {
  std::vector<std::vector<NamedImage>> lots;
  int64_t left = 0;
  for (const NamedImage& image : images) {
    check(image.patches <= patches, "an image of {} patches, a pass has {}", image.patches, patches);
    if (lots.empty() || image.patches > left) {
      lots.emplace_back();
      left = patches;
    }
    lots.back().push_back(image);
    left -= image.patches;
  }
  return lots;
}

// Fills a rank's passes and takes their rows, lot by lot.
class Embedder {
 public:
  Embedder(Session& session, const ImageEmbeddings& embeddings, const ImageBatches& batches,
           std::vector<std::vector<NamedImage>> lots)
      : session_(session), embeddings_(embeddings), batches_(batches), lots_(std::move(lots)) {
    for (const std::vector<NamedImage>& lot : lots_) all_.insert(all_.end(), lot.begin(), lot.end());
    queue_.emplace(
        batches.processor, [this] { return next_task(); }, std::max(batches.rows.threads, 1), batches.rows.most_bytes);
    session.on(HostJob::FillImages, [this](const HostTask&, std::span<const TensorView> views,
                                           RuntimeScalars& runtime) { fill(image_views(views), runtime); });
    session.on(HostJob::TakeEmbeddings,
               [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) { take(views[0]); });
  }

  int64_t lots() const { return std::ssize(lots_); }
  // Runs the pass of the next lot, or after the last one of none.
  void run() {
    session_.run(Task::Embed);
    lot_++;
  }

 private:
  // Called on the queue's threads, by one at a time.
  std::optional<ImageTask> next_task() {
    if (next_ == all_.size()) return std::nullopt;
    const NamedImage& named = all_[next_++];
    ImageTask task = task_in_memory(*named.dataset, *named.image);
    if (content_hash(task) != named.hash)
      user_error("{}: is another image than when the run began; run it again", task.source);
    return task;
  }

  std::vector<NamedImage> lot() const { return lot_ < lots_.size() ? lots_[lot_] : std::vector<NamedImage>(); }

  // Fills in the images of the lot as if their rows took the places of tokens that lie end to end.
  void fill(const ImageViews& views, RuntimeScalars& runtime) {
    ImageLayout layout(batches_.tower, views);
    numbers_.clear();
    order_.clear();
    int64_t token = 0;
    for (const NamedImage& named : lot()) {
      const ImageRows image = queue_->next(session_.heartbeat()).value();
      if (!image.warning.empty() && batches_.rows.note) batches_.rows.note(image.warning);
      numbers_.insert(numbers_.end(), image.rows.begin(), image.rows.end());
      const int64_t first = token;
      for (const ImageView& view : image.plan.views) {
        const auto before = std::ssize(order_);
        for (const int32_t row : layout.add(view.rows, view.columns, token)) order_.push_back(before + row);
        token += tokens_of_view(batches_.processor, view);
      }
      check(token - first == named.rows, "an image of {} rows, the data says {}", token - first, named.rows);
    }
    copy_rows(numbers_, order_, views.pixels);
    const ImageCounts counts = layout.finish();
    runtime.images = counts.images;
    runtime.image_windows = counts.windows;
    runtime.patch_segments = counts.segments;
    places_.assign(views.places.begin(), views.places.end());
  }

  // Writes the rows of each image of the lot in the order of its tokens.
  void take(const TensorView& rows) {
    const size_t row_bytes = static_cast<size_t>(rows.cols()) * element_bytes(rows.dtype);
    taken_.resize(static_cast<size_t>(rows.rows()) * row_bytes);
    for (size_t r = 0; r < places_.size(); r++)
      if (places_[r] >= 0)
        std::copy_n(rows.data + r * row_bytes, row_bytes,
                    taken_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(places_[r]) * row_bytes));
    size_t begin = 0;
    for (const NamedImage& named : lot()) {
      embeddings_.files().write(named.hash,
                                {taken_.data() + begin, rows.dtype, {named.rows, rows.cols()}, rows.cols()});
      begin += static_cast<size_t>(named.rows) * row_bytes;
    }
  }

  Session& session_;
  const ImageEmbeddings& embeddings_;
  const ImageBatches& batches_;
  const std::vector<std::vector<NamedImage>> lots_;
  size_t lot_ = 0;                   // that the pass is of
  std::vector<NamedImage> all_;      // of all lots
  size_t next_ = 0;                  // of these, the next to be decoded
  std::vector<float> numbers_;       // scratch: patches as their images have them
  std::vector<int64_t> order_;       // scratch: which of these is each of the pass
  std::vector<int32_t> places_;      // of the pass's rows
  std::vector<std::byte> taken_;     // scratch: rows in the order of their places
  std::optional<ImageQueue> queue_;  // last, so that its threads end before what they use
};

}  // namespace

EmbeddedImages embed_images(Session& session, const ImageEmbeddings& embeddings, const ImageBatches& batches,
                            const EmbeddingShare& share, const std::function<bool()>& interrupted) {
  EmbeddedImages done;
  const int64_t patches = session.spec().cut.patches_of(0);
  // Once is enough, unless another process takes files away meanwhile.
  while (!done.interrupted) {
    session.barrier("the end of embedding images");  // nobody writes while others look
    const std::vector<NamedImage> missing = embeddings.missing();
    const std::vector<std::vector<NamedImage>> lots = lots_of(missing, patches);
    std::vector<std::vector<NamedImage>> own;
    for (size_t lot = static_cast<size_t>(share.place); lot < lots.size(); lot += static_cast<size_t>(share.ranks))
      own.push_back(lots[lot]);
    const auto missing_lots =
        static_cast<uint64_t>(std::ssize(lots) + share.ranks - 1) / static_cast<uint64_t>(share.ranks);
    // Every rank makes as many passes, as they gather weights together.
    const int64_t passes =
        static_cast<int64_t>(~session.least_over_ranks(~missing_lots, "the count of images to embed"));
    if (passes == 0) break;
    Embedder embedder(session, embeddings, batches, std::move(own));
    Progress progress("images", 0, passes, session.rank() == 0);
    for (int64_t pass = 1; pass <= passes && !done.interrupted; pass++) {
      embedder.run();
      done.passes++;
      progress.update(pass, fmt::format("{} images", embeddings.images().size()));
      done.interrupted = session.as_rank_0(interrupted() ? 1 : 0, {"the images of pass", pass}, 1) != 0;
    }
    session.barrier("the end of a round of images");
    done.images += std::ssize(missing) - std::ssize(embeddings.missing());
  }
  return done;
}

}  // namespace snug
