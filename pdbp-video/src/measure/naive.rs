//! The measures as the papers print them, in floating point and sample by sample, to test the fast ones against.

use super::Scores;
use crate::decode::Yuv;

/// A luma plane that can be read along its rows or along its columns.
struct Lines {
    samples: Vec<Vec<f64>>,
}

impl Lines {
    fn rows(picture: &Yuv<'_>) -> Self {
        Self { samples: picture.luma_rows().map(|row| row.iter().map(|y| f64::from(*y)).collect()).collect() }
    }

    fn columns(picture: &Yuv<'_>) -> Self {
        let rows = Self::rows(picture).samples;
        Self { samples: (0..rows[0].len()).map(|x| rows.iter().map(|row| row[x]).collect()).collect() }
    }

    fn blur(&self) -> f64 {
        let (mut sum_f, mut sum_v) = (0.0, 0.0);
        for line in &self.samples {
            for n in 5..line.len().saturating_sub(4) {
                let mean = |centre: usize| line[centre - 4..=centre + 4].iter().sum::<f64>() / 9.0;
                let d_f = (line[n] - line[n - 1]).abs();
                let d_b = (mean(n) - mean(n - 1)).abs();
                sum_f += d_f;
                sum_v += f64::max(0.0, d_f - d_b);
            }
        }
        if sum_f == 0.0 { 1.0 } else { (sum_f - sum_v) / sum_f }
    }

    /// B, A and Z of one direction.
    fn features(&self) -> (f64, f64, f64) {
        let (mut border, mut borders, mut all, mut count, mut crossings, mut triples) =
            (0.0, 0, 0.0, 0, 0, 0);
        for line in &self.samples {
            let d: Vec<f64> = line.windows(2).map(|pair| pair[1] - pair[0]).collect();
            for (n, d) in d.iter().enumerate() {
                all += d.abs();
                count += 1;
                if n % 8 == 7 {
                    border += d.abs();
                    borders += 1;
                }
            }
            crossings += d.windows(2).filter(|pair| pair[0] * pair[1] < 0.0).count();
            triples += d.len().saturating_sub(1);
        }
        let b = border / f64::from(borders.max(1));
        let a = (8.0 * all / f64::from(count.max(1)) - b) / 7.0;
        (b, a, crossings as f64 / triples.max(1) as f64)
    }
}

/// The scores of a picture.
pub(super) fn scores(picture: &Yuv<'_>) -> Scores {
    let (rows, columns) = (Lines::rows(picture), Lines::columns(picture));
    let ((bh, ah, zh), (bv, av, zv)) = (rows.features(), columns.features());
    let (b, a) = ((bh + bv) / 2.0, (ah + av) / 2.0);
    let blockiness = if b == 0.0 && a <= 1e-12 {
        1.0
    } else if a <= 1e-12 {
        100.0
    } else {
        (b / a).min(100.0)
    };
    Scores {
        blur: rows.blur().max(columns.blur()) as f32,
        blockiness: blockiness as f32,
        smoothness: (1.0 - (zh + zv) / 2.0) as f32,
    }
}

/// BT.601 in floating point: red, green, blue of the sample at (x, y).
pub(super) fn rgb(picture: &Yuv<'_>, x: usize, y: usize) -> [f64; 3] {
    let luma = 1.164_383 * (f64::from(picture.luma_row(y)[x]) - 16.0);
    let (u, v) = picture.chroma_row(y / 2);
    let (u, v) = (f64::from(u[x / 2]) - 128.0, f64::from(v[x / 2]) - 128.0);
    let rgb = [luma + 1.596_027 * v, luma - 0.391_762 * u - 0.812_968 * v, luma + 2.017_232 * u];
    rgb.map(|sample| sample.clamp(0.0, 255.0))
}
