package driver

import "github.com/trueup/trueup/internal/ondisk"

// Inherit makes an image the child of a parent. It gets those of the parent's issues that matter to a copy, and its
// Check walks the parent's tables too: what is wrong with either is wrong with the disk that both show.
func (img *Image) Inherit(parent *Image) {
	img.Child = true
	img.Issues = append(img.Issues, ofParent(parent.Issues)...)
	own := img.Check
	if parent.Check == nil {
		return
	}
	img.Check = func() ([]ondisk.Issue, error) {
		var out []ondisk.Issue
		if own != nil {
			var err error
			if out, err = own(); err != nil {
				return nil, err
			}
		}
		found, err := parent.Check()
		return append(out, ofParent(found)...), err
	}
}

func ofParent(issues []ondisk.Issue) []ondisk.Issue {
	out := make([]ondisk.Issue, 0, len(issues))
	for _, i := range issues {
		if i.Effect > ondisk.Note {
			i.Text = "in the parent: " + i.Text
			out = append(out, i)
		}
	}
	return out
}
