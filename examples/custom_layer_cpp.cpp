/* A custom layer in C++17: causal self-attention, stacked between czero's embedding and
 * language-model head, trained on a text file, while a second thread prints what happens.
 *
 *   custom_layer_cpp TEXT [STEPS [DEVICE]]
 *
 * The layer, for x (N,C):
 *   qkv = x*Wqkv                                    (N,3C)
 *   out = x + attention(qkv)*Wout                   H heads of C/H
 *
 * Errors: czero's calls return a status, and check() throws it. An exception must not leave a
 * function that czero calls, so guarded() turns it into a status again.
 * Threads: the main thread uses the engine. czero calls the log's receiver in any thread, while it
 * holds the log's lock; so the receiver only appends to a queue, and a thread of the program
 * prints.
 *
 * Legend: B batch, T positions, N = B*T, C width, H heads. */
#include <czero/czero.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

/* ---- errors ---------------------------------------------------------------------------------- */

class Error : public std::runtime_error {
  public:
    Error(cz_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    cz_status status() const { return status_; }

  private:
    cz_status status_;
};

void check(cz_status status)
{
    if (status != CZ_OK) throw Error(status, cz_last_error());
}

/* For calls that return an object. */
template <class T> T *check(T *object)
{
    if (!object) throw Error(cz_last_status(), cz_last_error());
    return object;
}

/* Run a function of a layer; what it throws becomes the status of the engine's call. */
template <class Function> cz_status guarded(Function &&function) noexcept
{
    try {
        function();
        return CZ_OK;
    } catch (const Error &e) {
        return cz_error(e.status(), "%s", e.what());
    } catch (const std::bad_alloc &) {
        return cz_error(CZ_NOMEM, "no memory in a layer");
    } catch (const std::exception &e) {
        return cz_error(CZ_INVALID, "%s", e.what());
    }
}

/* Zeroed options or arguments that know their size. */
template <class Struct> Struct sized()
{
    Struct s{};
    s.size = sizeof s;
    return s;
}

/* ---- from a C++ class to a struct cz_layer_class ----------------------------------------------
 * `Layer` is made from its hyper-parameters for each call: a plain struct, which the model keeps.
 * It has declare(), sizes(), forward() and backward(). */

template <class Layer> class LayerClass {
  public:
    static const cz_layer_class *get()
    {
        static const cz_layer_class instance = make();
        return &instance;
    }

  private:
    static Layer layer(const void *hp)
    {
        return Layer(*static_cast<const typename Layer::Options *>(hp));
    }

    static cz_layer_class make()
    {
        auto c = sized<cz_layer_class>();
        c.name = Layer::name;
        c.declare = [](const void *hp, cz_param_list *out) {
            return guarded([&] { layer(hp).declare(out); });
        };
        c.sizes = [](const void *hp, const cz_layer_shape *shape, cz_layer_sizes *out) {
            return guarded([&] { layer(hp).sizes(*shape, *out); });
        };
        c.forward = [](const void *hp, const cz_layer_args *a) {
            return guarded([&] { layer(hp).forward(*a); });
        };
        c.backward = [](const void *hp, const cz_layer_args *a) {
            return guarded([&] { layer(hp).backward(*a); });
        };
        return c;
    }
};

/* ---- the layer ------------------------------------------------------------------------------- */

/* Memory handed out piece by piece; without memory it only counts. */
class Pieces {
  public:
    explicit Pieces(void *base) : base_(static_cast<unsigned char *>(base)) {}

    void *take(size_t nbytes)
    {
        unsigned char *piece = base_ ? base_ + used_ : nullptr;
        used_ += (nbytes + 63) / 64 * 64;
        return piece;
    }
    size_t used() const { return used_; }

  private:
    unsigned char *base_;
    size_t used_ = 0;
};

class Attention {
  public:
    struct Options {
        int idx;
        int64_t C, H;
    };
    static constexpr const char *name = "attention";

    explicit Attention(const Options &options) : o_(options) {}

    void declare(cz_param_list *out) const
    {
        const int64_t qkv[] = {o_.C, 3 * o_.C}, proj[] = {o_.C, o_.C};
        const std::string prefix = "attention." + std::to_string(o_.idx);
        check(cz_param_add(out, (prefix + ".qkv.weight").c_str(), 2, qkv, CZ_INIT_NORMAL, 0.08f));
        check(cz_param_add(out, (prefix + ".out.weight").c_str(), 2, proj, CZ_INIT_NORMAL, 0.05f));
    }

    void sizes(const cz_layer_shape &s, cz_layer_sizes &out) const
    {
        const Tensors t = tensors(nullptr, s.B, s.T, s.dtype);
        const int64_t N = s.B * s.T, C = o_.C;
        auto attention = attention_args(t, s.B, s.T, s.dtype);
        size_t op_nbytes = 0, nbytes = 0;
        check(cz_attention_forward_workspace(s.ops, &attention, &nbytes));
        op_nbytes = std::max(op_nbytes, nbytes);
        if (s.training) {
            check(cz_attention_backward_workspace(s.ops, &attention, &nbytes));
            op_nbytes = std::max(op_nbytes, nbytes);
        }
        const cz_matmul_args products[] = {
            product(N, C, 3 * C, s.dtype),
            product(N, C, C, s.dtype),
            product_dx(N, C, 3 * C, s.dtype),
            product_dx(N, C, C, s.dtype),
            product_dw(N, C, 3 * C, s.dtype, s.grad_dtype, false),
            product_dw(N, C, 3 * C, s.dtype, s.grad_dtype, true),
            product_dw(N, C, C, s.dtype, s.grad_dtype, false),
            product_dw(N, C, C, s.dtype, s.grad_dtype, true),
        };
        for (const cz_matmul_args &p : products) {
            check(cz_matmul_workspace(s.ops, &p, &nbytes));
            op_nbytes = std::max(op_nbytes, nbytes);
        }
        out.out_nbytes = static_cast<size_t>(N * C) * cz_dtype_size(s.dtype);
        out.saved_nbytes = s.training ? t.nbytes : 0;
        /* forward in evaluation keeps the tensors here, backward their gradients */
        out.workspace_nbytes = t.nbytes + op_nbytes;
        out.flops_forward = static_cast<double>(N * C) *
                            (8.0 * static_cast<double>(C) + 4.0 * static_cast<double>(s.T));
    }

    void forward(const cz_layer_args &a) const
    {
        const int64_t B = a.batch->B, T = a.batch->T, N = B * T, C = o_.C;
        const Tensors own = tensors(a.workspace, B, T, a.dtype);
        const Tensors t = a.saved ? tensors(a.saved, B, T, a.dtype) : own;
        const Space space = space_behind(own, a);

        run(a, product(N, C, 3 * C, a.dtype), a.in, a.params[QKV], t.qkv, space);
        auto attention = attention_args(t, B, T, a.dtype);
        attention.workspace = space.p;
        attention.workspace_nbytes = space.nbytes;
        check(cz_attention_forward(a.ops, &attention));
        if (!a.out) return; /* recomputation, of which only `saved` is wanted */
        run(a, product(N, C, C, a.dtype), t.mixed, a.params[OUT], a.out, space);
        add(a, a.in, a.out);
    }

    void backward(const cz_layer_args &a) const
    {
        const int64_t B = a.batch->B, T = a.batch->T, N = B * T, C = o_.C;
        const Tensors t = tensors(a.saved, B, T, a.dtype);
        const Tensors d = tensors(a.workspace, B, T, a.dtype); /* gradients of the same */
        const Space space = space_behind(d, a);
        const cz_param_grad &d_out = a.dparams[OUT], &d_qkv = a.dparams[QKV];

        if (d_out.dp) /* NULL: frozen */
            run(a, product_dw(N, C, C, a.dtype, a.grad_dtype, d_out.accumulate), t.mixed, a.dout,
                d_out.dp, space);
        run(a, product_dx(N, C, C, a.dtype), a.dout, a.params[OUT], d.mixed, space);

        auto attention = attention_args(t, B, T, a.dtype);
        attention.dout = d.mixed;
        attention.dq = d.qkv;
        attention.dk = at(d.qkv, C, a.dtype);
        attention.dv = at(d.qkv, 2 * C, a.dtype);
        attention.workspace = space.p;
        attention.workspace_nbytes = space.nbytes;
        check(cz_attention_backward(a.ops, &attention));

        if (d_qkv.dp)
            run(a, product_dw(N, C, 3 * C, a.dtype, a.grad_dtype, d_qkv.accumulate), a.in, d.qkv,
                d_qkv.dp, space);
        run(a, product_dx(N, C, 3 * C, a.dtype), d.qkv, a.params[QKV], a.din, space);
        add(a, a.dout, a.din);
    }

  private:
    enum { QKV = 0, OUT }; /* in the order of declaration */

    struct Tensors {
        void *qkv, *mixed; /* (N,3C), (N,C) */
        float *lse;        /* (B,H,T) */
        size_t nbytes;
    };
    struct Space {
        void *p;
        size_t nbytes;
    };

    Tensors tensors(void *base, int64_t B, int64_t T, cz_dtype dtype) const
    {
        const size_t n = static_cast<size_t>(B * T * o_.C) * cz_dtype_size(dtype);
        Pieces pieces(base);
        Tensors t{};
        t.qkv = pieces.take(3 * n);
        t.mixed = pieces.take(n);
        t.lse =
            static_cast<float *>(pieces.take(static_cast<size_t>(B * o_.H * T) * sizeof(float)));
        t.nbytes = pieces.used();
        return t;
    }

    /* The workspace that remains for the ops. */
    static Space space_behind(const Tensors &t, const cz_layer_args &a)
    {
        return {static_cast<unsigned char *>(a.workspace) + t.nbytes,
                a.workspace_nbytes - t.nbytes};
    }

    static void *at(void *base, int64_t elements, cz_dtype dtype)
    {
        if (!base) return nullptr;
        return static_cast<unsigned char *>(base) +
               static_cast<size_t>(elements) * cz_dtype_size(dtype);
    }

    /* q, k and v are columns of qkv. */
    cz_attention_args attention_args(const Tensors &t, int64_t B, int64_t T, cz_dtype dtype) const
    {
        auto a = sized<cz_attention_args>();
        a.B = B;
        a.Tq = a.Tk = T;
        a.H = a.G = o_.H;
        a.D = o_.C / o_.H;
        a.dtype = dtype;
        a.scale = 1.0f / std::sqrt(static_cast<float>(a.D));
        a.causal = true;
        a.q = t.qkv;
        a.k = at(t.qkv, o_.C, dtype);
        a.v = at(t.qkv, 2 * o_.C, dtype);
        a.q_stride = a.k_stride = a.v_stride = 3 * o_.C;
        a.out = t.mixed;
        a.lse = t.lse;
        return a;
    }

    /* y (rows,out) = x (rows,in)*w (in,out), and its gradients. */
    static cz_matmul_args product(int64_t rows, int64_t in, int64_t out, cz_dtype dtype)
    {
        auto p = sized<cz_matmul_args>();
        p.m = rows;
        p.n = out;
        p.k = in;
        p.dtype = p.c_dtype = dtype;
        return p;
    }
    static cz_matmul_args product_dx(int64_t rows, int64_t in, int64_t out, cz_dtype dtype)
    {
        auto p = product(rows, out, in, dtype);
        p.trans_b = true;
        return p;
    }
    static cz_matmul_args product_dw(int64_t rows, int64_t in, int64_t out, cz_dtype dtype,
                                     cz_dtype grad_dtype, bool accumulate)
    {
        auto p = product(in, rows, out, dtype);
        p.trans_a = true;
        p.c_dtype = grad_dtype;
        p.accumulate = accumulate;
        return p;
    }

    static void run(const cz_layer_args &a, cz_matmul_args p, const void *x, const void *w, void *y,
                    const Space &space)
    {
        p.a = x;
        p.b = w;
        p.c = y;
        p.workspace = space.p;
        p.workspace_nbytes = space.nbytes;
        check(cz_matmul(a.ops, &p));
    }

    /* y += x, over (N,C). */
    void add(const cz_layer_args &a, const void *x, void *y) const
    {
        auto args = sized<cz_add_args>();
        args.dtype = a.dtype;
        args.numel = static_cast<size_t>(a.batch->B * a.batch->T * o_.C);
        args.a = x;
        args.b = y;
        args.y = y;
        check(cz_add(a.ops, &args));
    }

    Options o_;
};

/* ---- the model ------------------------------------------------------------------------------- */

constexpr int64_t WIDTH = 64, HEADS = 4, VOCAB = 256, SEQ_LEN = 64, MICRO_BATCH = 8;
constexpr int DEPTH = 2;

template <class T, void (*destroy)(T *)> struct Destroy {
    void operator()(T *object) const { destroy(object); }
};
using Model = std::unique_ptr<cz_model, Destroy<cz_model, cz_model_destroy>>;
using Engine = std::unique_ptr<cz_engine, Destroy<cz_engine, engine_destroy>>;
using Data = std::unique_ptr<cz_data_loader, Destroy<cz_data_loader, cz_data_close>>;

Model make_model()
{
    auto embedding = sized<cz_embedding_hp>();
    embedding.token_name = "token.weight";
    embedding.position_name = "position.weight";
    embedding.V = VOCAB;
    embedding.P = SEQ_LEN;
    embedding.C = WIDTH;
    embedding.init_std = 0.1f;
    auto head = sized<cz_lm_head_hp>();
    head.norm_weight_name = "norm.weight";
    head.weight_name = "token.weight"; /* tied */
    head.tied_alias = "head.weight";
    head.V = VOCAB;
    head.C = WIDTH;
    head.eps = 1e-5f;

    std::vector<Attention::Options> options;
    for (int i = 0; i < DEPTH; i++) options.push_back({i, WIDTH, HEADS});
    std::vector<cz_layer_desc> layers;
    layers.push_back({cz_layer_embedding(), &embedding, sizeof embedding});
    for (const auto &o : options) layers.push_back({LayerClass<Attention>::get(), &o, sizeof o});
    layers.push_back({cz_layer_lm_head(), &head, sizeof head});

    auto desc = sized<cz_model_desc>();
    desc.name = "attention";
    desc.layers = layers.data();
    desc.n_layers = layers.size();
    desc.vocab_size = VOCAB;
    desc.t_max = SEQ_LEN;
    desc.hidden_size = WIDTH;
    return Model(check(cz_model_create(&desc)));
}

Engine make_engine(Model model, const char *device)
{
    auto options = sized<cz_engine_options>();
    options.config_json =
        "{\"train_micro_batch_size_per_gpu\": 8, \"gradient_accumulation_steps\": 1,"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-3, \"weight_decay\": 0.01}},"
        " \"gradient_clipping\": 1.0}";
    options.device = device;
    options.seed = 1;
    Engine engine(check(engine_initialize_ex(&options, model.get())));
    model.release(); /* the engine owns it now; after an error it would still be ours */
    return engine;
}

/* ---- a thread that prints -------------------------------------------------------------------- */

class Printer {
  public:
    Printer() : thread_([this] { run(); }) { cz_log_set_sink(receive, this); }
    ~Printer()
    {
        cz_log_set_sink(nullptr, nullptr); /* no call is running or begins after this */
        {
            std::lock_guard<std::mutex> lock(mutex_);
            done_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }
    Printer(const Printer &) = delete;
    Printer &operator=(const Printer &) = delete;

    void print(std::string line)
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            lines_.push_back(std::move(line));
        }
        changed_.notify_one();
    }

  private:
    static void receive(cz_log_level, const char *line, void *user)
    {
        try {
            static_cast<Printer *>(user)->print(std::string("czero: ") + line);
        } catch (const std::exception &) {
            /* a line is lost; training is not */
        }
    }

    void run()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return done_ || !lines_.empty(); });
            if (lines_.empty()) return;
            const std::string line = std::move(lines_.front());
            lines_.pop_front();
            lock.unlock();
            std::printf("%s\n", line.c_str());
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::string> lines_;
    bool done_ = false;
    std::thread thread_; /* last: it uses the others */
};

/* ---- training -------------------------------------------------------------------------------- */

Data open_data(const char *path)
{
    auto options = sized<cz_data_options>();
    options.paths = &path;
    options.n_paths = 1;
    options.seq_len = SEQ_LEN;
    options.micro_batch = MICRO_BATCH;
    options.shuffle = true;
    cz_data_loader *loader = nullptr;
    check(cz_data_open(&options, &loader));
    return Data(loader);
}

void train(const char *path, long n_steps, const char *device)
{
    Printer printer;
    const Data data = open_data(path);
    const Engine engine = make_engine(make_model(), device);
    float first = 0, recent = 0;
    for (long step = 0; step < n_steps; step++) {
        auto batch = sized<cz_batch>();
        float loss = 0;
        check(cz_data_next(data.get(), &batch));
        check(engine_forward(engine.get(), &batch, &loss));
        check(engine_backward(engine.get()));
        check(engine_step(engine.get()));
        if (step == 0) first = recent = loss;
        recent += 0.05f * (loss - recent);
        if (step % 50 == 0 || step + 1 == n_steps)
            printer.print("step " + std::to_string(step + 1) + "  loss " + std::to_string(loss));
    }
    printer.print("loss went from " + std::to_string(first) + " to about " +
                  std::to_string(recent));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2 || std::string(argv[1]) == "--help") {
        std::printf("Usage: custom_layer_cpp TEXT [STEPS [DEVICE]]\n\n"
                    "Train a small model with a custom layer on the bytes of a text file, on\n"
                    "cpu (default) or cuda.\n");
        return argc < 2 ? 2 : 0;
    }
    const long n_steps = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 300;
    try {
        train(argv[1], n_steps > 0 ? n_steps : 1, argc > 3 ? argv[3] : nullptr);
        return 0;
    } catch (const Error &e) {
        std::fprintf(stderr, "custom_layer_cpp: %s (%s)\n", e.what(), cz_status_name(e.status()));
    } catch (const std::exception &e) {
        std::fprintf(stderr, "custom_layer_cpp: %s\n", e.what());
    }
    return 1;
}
