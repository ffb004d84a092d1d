// Trains logistic regression on images of digits, without any other library: train DATASET. A file N/NAME.pgm of the
// dataset is a binary PGM image of 8 x 8 pixels that shows the digit N.
#include <diesel.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

constexpr int PIXELS = 64, DIGITS = 10;

struct Model {
    std::array<std::array<double, PIXELS + 1>, DIGITS> weights{};

    std::array<double, DIGITS> probabilities(const std::uint8_t *pixels) const {
        std::array<double, DIGITS> scores{};
        for (int digit = 0; digit < DIGITS; digit++) {
            scores[digit] = weights[digit][PIXELS];
            for (int at = 0; at < PIXELS; at++) scores[digit] += weights[digit][at] * pixels[at] / 255.0;
        }
        const double most = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double &score : scores) sum += score = std::exp(score - most);
        for (double &score : scores) score /= sum;
        return scores;
    }

    void learn(const std::uint8_t *pixels, int label, double rate) {
        const auto guess = probabilities(pixels);
        for (int digit = 0; digit < DIGITS; digit++) {
            const double step = rate * ((digit == label) - guess[digit]);
            for (int at = 0; at < PIXELS; at++) weights[digit][at] += step * pixels[at] / 255.0;
            weights[digit][PIXELS] += step;
        }
    }
};

int main(int argc, char **argv) try {
    if (argc != 2) return std::fputs("usage: train DATASET\n", stderr), 2;
    dl::Dataset dataset(argv[1]);
    Model model;
    for (unsigned number = 0; number < 5; number++) {
        int right = 0, all = 0;
        DL_order order{};
        order.seed = 1, order.epoch = number;
        auto epoch = dataset.shuffle(order);
        for (dl::File &file : epoch) {
            if (file.bytes.status() != DL_OK || file.bytes.size() < PIXELS) continue;
            const int label = std::atoi(dataset.path(file.number).c_str());
            const std::uint8_t *pixels = file.bytes.data() + file.bytes.size() - PIXELS;
            const auto guess = model.probabilities(pixels);
            right += std::max_element(guess.begin(), guess.end()) - guess.begin() == label;
            all++;
            model.learn(pixels, label, 0.1);
        }
        std::printf("epoch %u: %d of %d right before they were learned\n", number, right, all);
    }
    dataset.close();
} catch (const dl::Error &error) {
    return std::fprintf(stderr, "train: %s\n", error.what()), 1;
}
